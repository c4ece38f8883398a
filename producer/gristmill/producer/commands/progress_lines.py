"""The two lines that show a run on a terminal: a bar with the outlook, and the counts below it.

`display.py` imports this only if there is a terminal, because it imports rich.
"""

import os
from collections.abc import Iterator
from math import ceil

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.control import Control
from rich.progress_bar import ProgressBar
from rich.segment import ControlType
from rich.table import Table
from rich.text import Text

from gristmill.producer.commands.run_progress import RunProgress

MAX_BAR_CELLS = 40
MIN_BAR_CELLS = 10
"""A terminal with less room than this for the bar shows none."""


class ProgressLines:
    """Renders a run's progress for any width of the terminal.

    Attributes:
        progress: The state to show; None shows nothing.
        cells: Cells that each line took when it was drawn last.
    """

    def __init__(self) -> None:
        self.progress: RunProgress | None = None
        self.cells: list[int] = []

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the two lines."""
        self.cells = []
        if self.progress is None:
            return
        width = options.max_width
        share = self.progress.num_done / self.progress.total if self.progress.total else 1.0
        head = Text(", ".join(filter(None, [f"{share:4.0%}", self.progress.outlook])))
        bar_cells = min(MAX_BAR_CELLS, width - head.cell_len - 1)
        if bar_cells < MIN_BAR_CELLS:
            yield from self._line(head, width)
        else:
            grid = Table.grid(padding=(0, 1))
            grid.add_row(ProgressBar(1.0, share, width=bar_cells), head)
            self.cells.append(bar_cells + 1 + head.cell_len)
            yield grid
        yield from self._line(Text(_fitting(self.progress, width)), width)

    def _line(self, text: Text, width: int) -> Iterator[Text]:
        text.no_wrap, text.overflow = True, "ellipsis"
        self.cells.append(min(text.cell_len, width))
        yield text

    def num_rows(self, width: int) -> int:
        """Return the number of rows that the drawn lines take on a terminal of another width."""
        return sum(max(1, ceil(cells / width)) for cells in self.cells)


class ReflowEraser(RenderHook):
    """Erases the rows into which a narrower terminal breaks the lines that were drawn before.

    rich goes up as many rows as it drew lines, so it would leave the first row of a broken line behind.

    Args:
        lines: Lines of the display.
        console: Console of the display; push this hook after `Live` has pushed its own.
    """

    def __init__(self, lines: ProgressLines, console: Console) -> None:
        self._lines = lines
        self._console = console
        self._width = console.width

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Put the erasure before the renderables if the terminal became narrower."""
        width, before = self._console.width, self._width
        self._width = width
        if width >= before or not _terminal_reflows():
            return renderables
        num_broken = self._lines.num_rows(width) - len(self._lines.cells)
        erase_row = ((ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1))
        return [Control(*erase_row * num_broken), *renderables]


def _terminal_reflows() -> bool:
    """Return whether the terminal rewraps lines when its width changes; xterm, screen and Linux's console cut them."""
    cuts = "XTERM_VERSION" in os.environ or "STY" in os.environ
    return not cuts and os.environ.get("TERM") != "linux"


def _fitting(progress: RunProgress, width: int) -> str:
    """Return the first parts that fit into a line together, at least one."""
    parts = list(progress.parts)
    while len(parts) > 1 and len(", ".join(parts)) > width:
        parts.pop()
    return ", ".join(parts)
