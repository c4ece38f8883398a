"""Show the current run and its progress on stderr."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Protocol

from gristmill.shared.cli import people, say
from gristmill.shared.tasks import end

BAR_INTERVAL_S = 0.2
LINE_INTERVAL_S = 10.0


@asynccontextmanager
async def shown(title: str, total: int, num_done: Callable[[], int]) -> AsyncIterator[None]:
    """Show the progress of a run for the length of a block.

    Args:
        title: Description of the run.
        total: Number of its requests.
        num_done: Returns the number of requests that have ended.
    """
    with _display(title, total) as display:
        task = asyncio.create_task(_follow(display, num_done))
        try:
            yield
        finally:
            await end(task)


@asynccontextmanager
async def waiting(what: str) -> AsyncIterator[None]:
    """Say what a block waits for: at once, and then every `LINE_INTERVAL_S`.

    Args:
        what: What happens, such as "starting the engine"; a start may take minutes.
    """
    say(f"  {what}")
    task = asyncio.create_task(_repeat(what))
    try:
        yield
    finally:
        await end(task)


async def _repeat(what: str) -> None:
    start_s = time.monotonic()
    while True:
        await asyncio.sleep(LINE_INTERVAL_S)
        say(f"  {what}: {time.monotonic() - start_s:.0f} s so far")


class _Display(Protocol):
    interval_s: float

    def show(self, num_done: int) -> None:
        """Show the number of requests that have ended."""


@contextmanager
def _display(title: str, total: int) -> Iterator[_Display]:
    if not people().is_terminal:
        yield _ProgressLines(title, total)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=people(), transient=True) as progress:
        task = progress.add_task(title, total=total)
        yield _ProgressBar(lambda done: progress.update(task, completed=done))


async def _follow(display: _Display, num_done: Callable[[], int]) -> None:
    while True:
        await asyncio.sleep(display.interval_s)
        display.show(num_done())


class _ProgressLines:
    interval_s = LINE_INTERVAL_S

    def __init__(self, title: str, total: int) -> None:
        self._title, self._total = title, total
        self._start_s = time.monotonic()

    def show(self, num_done: int) -> None:
        elapsed_s = time.monotonic() - self._start_s
        say(f"  {self._title}: {num_done:,} of {self._total:,} after {elapsed_s:.0f} s")


class _ProgressBar:
    interval_s = BAR_INTERVAL_S

    def __init__(self, show: Callable[[int], None]) -> None:
        self.show = show
