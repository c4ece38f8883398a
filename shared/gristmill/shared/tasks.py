"""End asyncio tasks reliably."""

import asyncio
from typing import Any

CANCEL_INTERVAL_S = 0.5


async def end(*tasks: "asyncio.Future[Any] | None") -> None:
    """Cancel tasks until all have ended; do not raise their errors.

    One cancellation may not be enough. redis-py uses `asyncio.wait_for`, which in Python 3.11 loses
    a cancellation that comes in the same step as its result (python/cpython#86296).
    """
    left = {task for task in tasks if task and not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_INTERVAL_S)
