"""Split a JSONL file into numbered lines, in memory bounded by one line."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import BinaryIO

MAX_BLANK_LAST_LINES = 1_000
"""Blank lines at the end that are overlooked; of more, the first are refused as lines."""

SOME_BYTES = 8 * 2**20

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a file.

    Attributes:
        number: From 1, as editors count.
        raw: Its bytes without the line end; of a line over the limit, no more than shows that.
        start: Where it begins in the file, in bytes.
        end: Where the next line begins.
    """

    number: int
    raw: bytes
    start: int
    end: int


def lines_of(
    stream: BinaryIO, max_line_bytes: int, *, number: int = 0, offset: int = 0
) -> Iterator[Line]:
    """Yield the lines of a file.

    A byte order mark, CRLF and blank lines at the end are tolerated; a blank line elsewhere is
    yielded, for the reader to refuse.

    Args:
        stream: Opened in binary mode, and at `offset`.
        max_line_bytes: What is longer is cut just beyond it.
        number: Of the line before the first that is read.
        offset: Where in the file that one begins.
    """
    blank: list[Line] = []
    for raw, num_bytes in _raw_lines(stream, max_line_bytes):
        number += 1
        text = raw.removeprefix(_BOM) if number == 1 else raw
        line = Line(number, text, offset, offset + num_bytes)
        offset = line.end
        if not text.strip() and len(blank) < MAX_BLANK_LAST_LINES:
            blank.append(line)
            continue
        yield from blank
        blank.clear()
        yield line


def some(lines: Iterator[Line], max_lines: int) -> list[Line]:
    """Take up to `max_lines` lines, fewer if they are long: about `SOME_BYTES`, and at least one."""
    taken: list[Line] = []
    num_bytes = 0
    for line in islice(lines, max_lines):
        taken.append(line)
        num_bytes += len(line.raw)
        if num_bytes > SOME_BYTES:
            break
    return taken


def _raw_lines(stream: BinaryIO, max_line_bytes: int) -> Iterator[tuple[bytes, int]]:
    limit = max_line_bytes + len(_BOM) + len(b"\r\n") + 1
    while raw := stream.readline(limit):
        num_bytes = len(raw)
        is_whole = raw.endswith(b"\n") or len(raw) < limit
        while not is_whole:
            rest = stream.readline(1 << 20)
            num_bytes += len(rest)
            is_whole = not rest or rest.endswith(b"\n")
        yield raw.rstrip(b"\r\n"), num_bytes
