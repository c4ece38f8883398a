"""Show the progress of a run to people: a bar on a terminal, else a line every few seconds."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from gristmill.shared.cli import people, say

if TYPE_CHECKING:
    from rich.progress import Progress

TERMINAL_INTERVAL_S = 0.5
LINE_INTERVAL_S = 5.0


class Display(Protocol):
    """Where progress appears."""

    interval_s: float

    def show(self, num_done: int, line: str) -> None:
        """Show a new state."""


@contextmanager
def display(total: int) -> Iterator[Display]:
    """Open what fits: a bar if stderr is a terminal, else lines."""
    if not people().is_terminal:
        yield _Lines()
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (BarColumn(bar_width=20), TaskProgressColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=people()) as progress:
        yield _Bar(progress, total)


class _Lines:
    interval_s = LINE_INTERVAL_S

    def show(self, num_done: int, line: str) -> None:
        say(line)


class _Bar:
    interval_s = TERMINAL_INTERVAL_S

    def __init__(self, progress: "Progress", total: int) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=total)

    def show(self, num_done: int, line: str) -> None:
        self._progress.update(self._task, completed=num_done, description=line)
