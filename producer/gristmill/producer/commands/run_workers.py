"""What a run needs of workers that its command starts, and ends with it; `gristmill run` has such workers."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NoReturn, Protocol

from gristmill.shared.tasks import end

WatchWorkers = Callable[[], Coroutine[Any, Any, NoReturn]]
"""Returns a coroutine that raises a GristmillError once the workers, or their Redis, have ended."""


class RunWorkers(Protocol):
    """Workers of one run."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """Values that a resume must have again, such as the model."""
        ...

    @property
    def log(self) -> Path:
        """File with their output."""
        ...

    @property
    def hidden_flags(self) -> Sequence[str]:
        """Their flags whose values the shown command line hides."""
        ...

    def running(self) -> AbstractContextManager[WatchWorkers]:
        """Run the workers for the length of a block, which begins when they take requests.

        Raises:
            GristmillError: They do not start.
        """
        ...


async def unless_lost(work: Coroutine[Any, Any, None], lost: WatchWorkers | None) -> None:
    """Run a coroutine to its end, unless its workers end before.

    Args:
        work: The coroutine.
        lost: See `WatchWorkers`; None if the workers are not this command's.

    Raises:
        GristmillError: The workers have ended; `work` was cancelled.
    """
    if lost is None:
        await work
        return
    working, watching = asyncio.create_task(work), asyncio.create_task(lost())
    try:
        await asyncio.wait([working, watching], return_when=asyncio.FIRST_COMPLETED)
        await (working if working.done() else watching)
    finally:
        await end(working, watching)
