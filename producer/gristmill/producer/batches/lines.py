"""Split a JSONL file into numbered lines, in memory bounded by one line."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a file.

    Attributes:
        number: From 1, as editors count.
        raw: Its bytes without the line end; of a line over the limit, no more than shows that.
    """

    number: int
    raw: bytes


def lines_of(stream: BinaryIO, max_line_bytes: int) -> Iterator[Line]:
    """Yield the lines of a file.

    A byte order mark, CRLF and blank lines at the end are tolerated; a blank line elsewhere is
    yielded, for the reader to refuse.

    Args:
        stream: Opened in binary mode, at its beginning.
        max_line_bytes: What is longer is cut just beyond it.
    """
    blank: list[Line] = []
    for number, raw in enumerate(_raw_lines(stream, max_line_bytes), 1):
        line = Line(number, raw.removeprefix(_BOM) if number == 1 else raw)
        if not line.raw.strip():
            blank.append(line)
            continue
        yield from blank
        blank.clear()
        yield line


def _raw_lines(stream: BinaryIO, max_line_bytes: int) -> Iterator[bytes]:
    limit = max_line_bytes + len(_BOM) + len(b"\r\n") + 1
    while raw := stream.readline(limit):
        is_whole = raw.endswith(b"\n") or len(raw) < limit
        yield raw.rstrip(b"\r\n")
        while not is_whole:
            rest = stream.readline(1 << 20)
            is_whole = not rest or rest.endswith(b"\n")
