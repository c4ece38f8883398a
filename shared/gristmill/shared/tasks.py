"""Ending asyncio tasks for certain."""

import asyncio
from typing import Any

CANCEL_INTERVAL_S = 0.5


async def end(*tasks: "asyncio.Future[Any] | None") -> None:
    """Cancel tasks until all have ended; their outcomes are not raised.

    `asyncio.wait_for` of Python 3.11, which redis-py uses, loses a cancellation that comes in the
    same step as its result (python/cpython#86296), so once may not be enough.
    """
    left = {task for task in tasks if task and not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_INTERVAL_S)
