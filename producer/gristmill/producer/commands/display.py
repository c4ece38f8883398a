"""Show the progress of a run to people: two lines on a terminal, else a line every few seconds."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from gristmill.producer.commands.run_progress import RunProgress
from gristmill.shared.cli import people, say

if TYPE_CHECKING:
    from gristmill.producer.commands.progress_lines import ProgressLines

TERMINAL_INTERVAL_S = 0.5
LINE_INTERVAL_S = 5.0


class Display(Protocol):
    """A place that shows progress to people.

    Attributes:
        interval_s: Seconds between two calls of `show`.
    """

    interval_s: float

    def show(self, progress: RunProgress) -> None:
        """Show the progress at this moment."""


@contextmanager
def display() -> Iterator[Display]:
    """Open a display: two live lines if stderr is a terminal, else a printed line per call."""
    if not people().is_terminal:
        yield _Lines()
        return
    from rich.live import Live

    from gristmill.producer.commands.progress_lines import ProgressLines, ReflowEraser

    lines = ProgressLines()
    with Live(lines, console=people()):
        people().push_render_hook(ReflowEraser(lines, people()))
        try:
            yield _Terminal(lines)
        finally:
            people().pop_render_hook()


class _Lines:
    interval_s = LINE_INTERVAL_S

    def show(self, progress: RunProgress) -> None:
        say(progress.line)


class _Terminal:
    interval_s = TERMINAL_INTERVAL_S

    def __init__(self, lines: "ProgressLines") -> None:
        self._lines = lines

    def show(self, progress: RunProgress) -> None:
        self._lines.progress = progress
