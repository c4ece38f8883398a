"""Split a JSONL file into numbered lines, in memory bounded by one line."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, BinaryIO

from gristmill.shared.errors import InvalidRequest

MAX_BLANK_LAST_LINES = 1_000
"""Most blank lines at the end of a file that are ignored; if there are more, some are bad lines."""

TAKE_BYTES = 8 * 2**20
"""Bytes after which `take_lines` stops, to bound the memory of one step."""

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a file.

    Attributes:
        number: Number of the line, from 1.
        raw: Its bytes without the line end; a line over the limit is cut just beyond the limit.
        start: Byte of the file at which it begins.
        end: Byte of the file at which the next line begins.
    """

    number: int
    raw: bytes
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that cannot run as a request.

    Attributes:
        number: Number of the line, from 1.
        reason: The rule that the line breaks, and the remedy.
        custom_id: The line's custom_id or id; None if none can be read, since its number may be the
            custom_id of another line.
        code: The kind of the rule, for programs.
        metadata: The line's metadata without the custom_id; None for no metadata.
        where: File and row, for a row of a table; "" for a line of the one input.
    """

    number: int
    reason: str
    custom_id: str | None
    code: str = InvalidRequest.code
    metadata: Mapping[str, Any] | None = None
    where: str = ""

    def __str__(self) -> str:
        return f"{self.where or f'line {self.number:,}'}: {self.reason}"

    def at(self, where: str) -> "BadLine":
        """Return the same error at another place."""
        return replace(self, where=where)


@dataclass(frozen=True, slots=True)
class SkippedRow:
    """A row of a table that is left without a request and without an error.

    Attributes:
        number: Number of the row, from 1.
    """

    number: int


def lines_of(
    stream: BinaryIO, max_line_bytes: int, *, number: int = 0, offset: int = 0
) -> Iterator[Line]:
    """Yield the lines of a file.

    A byte order mark, CRLF and blank lines at the end are dropped. A blank line elsewhere is a
    line, and `LineReader` refuses it.

    Args:
        stream: The file, opened in binary mode and at `offset`.
        max_line_bytes: Length at which a line is cut.
        number: Number of the line before the first one to read.
        offset: Byte of the file at which the first line begins.
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


def take_lines(lines: Iterator[Line], max_lines: int) -> list[Line]:
    """Return the next `max_lines` lines; fewer if they exceed `TAKE_BYTES`, none at the end."""
    taken: list[Line] = []
    num_bytes = 0
    for line in islice(lines, max_lines):
        taken.append(line)
        num_bytes += len(line.raw)
        if num_bytes > TAKE_BYTES:
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
