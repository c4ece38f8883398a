"""Fit tables to the width of a terminal. Pure rules."""

from collections.abc import Sequence
from typing import NamedTuple

from gristmill.shared.one_line import one_line

GAP = 2
"""Characters that the screen puts around each cell."""

MIN_TEXT = 12
"""Fewest characters that a cut text is worth."""


class Column(NamedTuple):
    """One column of a table.

    Attributes:
        title: Its heading.
        max_chars: Most characters of a cell; a longer one is cut.
        is_number: True to align it to the right.
    """

    title: str
    max_chars: int = 12
    is_number: bool = True


class Table(NamedTuple):
    """The content of a page.

    Attributes:
        columns: Columns, the most important first.
        rows: A cell for each column.
        note: Line below the table, such as how much it leaves out.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    note: str = ""


def fitted(table: Table, num_chars: int) -> Table:
    """Return the first columns that fit into a width, with cells cut to their most characters.

    The first column always stays. If the first that does not fit is a text, it is cut to what is left, and is the last.

    Args:
        table: The table.
        num_chars: Width of the terminal.
    """
    columns: list[Column] = []
    left = num_chars
    for index, column in enumerate(table.columns):
        widths = (min(column.max_chars, len(row[index])) for row in table.rows)
        widest = max([len(column.title), *widths])
        left -= GAP + widest
        if left < 0 and columns:
            if not column.is_number and left + widest >= MIN_TEXT:
                columns.append(column._replace(max_chars=left + widest))
            break
        columns.append(column)
    rows = [
        [cut(cell, column.max_chars) for cell, column in zip(row, columns, strict=False)]
        for row in table.rows
    ]
    return Table(columns, rows, table.note)


def cut(text: str, max_chars: int) -> str:
    """Return a text as one line of at most `max_chars` characters, none of which controls the terminal."""
    line = one_line(text)
    return line if len(line) <= max_chars else line[: max_chars - 1] + "…"
