"""The input of a run, read twice: the first pass checks all lines, the second one submits them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gristmill.producer.batches.rows import (
    BadLine,
    CustomIds,
    Line,
    LineReader,
    custom_id_of,
    duplicate_line,
    lines_of,
    unknown_fields_of,
)
from gristmill.shared.file_format import check_stream
from gristmill.shared.request import Request

MAX_SHOWN = 10
"""Bad lines of a file that are shown; the others are counted."""


@dataclass(slots=True)
class InputReport:
    """The outcome of a check of a whole file.

    Attributes:
        num_lines: Lines, good and bad.
        num_bad: Bad lines.
        bad: The first `MAX_SHOWN` bad lines.
        num_warned: Good lines with body fields that the engine ignores.
        warned: The first `MAX_SHOWN` of them.
        duplicates: Lines whose custom_id an earlier line has, each with that line.
    """

    num_lines: int = 0
    num_bad: int = 0
    bad: list[BadLine] = field(default_factory=list)
    num_warned: int = 0
    warned: list[BadLine] = field(default_factory=list)
    duplicates: dict[int, int] = field(default_factory=dict)

    def count(self, entry: Request | BadLine) -> None:
        """Count one line."""
        self.num_lines += 1
        if isinstance(entry, BadLine):
            self.num_bad += 1
            if len(self.bad) < MAX_SHOWN:
                self.bad.append(entry)
        elif entry.unknown_fields:
            self.num_warned += 1
            if len(self.warned) < MAX_SHOWN:
                self.warned.append(unknown_fields_of(self.num_lines, entry))


class InputFile:
    """One JSONL file of requests on this machine.

    Args:
        path: Path of the file; it is read twice, so it cannot be a pipe.
        reader: Reader that turns its lines into requests.
    """

    def __init__(self, path: Path, reader: LineReader) -> None:
        self._path = path
        self._reader = reader
        self._duplicates: Mapping[int, int] = {}

    def check(self) -> InputReport:
        """Read the whole file and report its bad lines. Memory: a digest of each custom_id.

        Raises:
            InvalidRequest: The file is not JSONL at all, but for example a Parquet file.
        """
        with self._path.open("rb") as stream:
            check_stream(stream, "the input")
        report = InputReport()
        custom_ids = CustomIds()
        for line in self._lines():
            entry = self._reader.read(line)
            if isinstance(entry, Request):
                first = custom_ids.add(custom_id_of(entry), line.number)
                if first is not None:
                    report.duplicates[line.number] = first
                    entry = duplicate_line(line.number, entry, first)
            report.count(entry)
        self._duplicates = report.duplicates
        return report

    def entries(self, finished: bytearray | None = None) -> Iterator[tuple[int, Request | BadLine]]:
        """Yield each line's number with its request or its error. Call `check` first.

        Args:
            finished: Element n is 1 if line n has its row and is left out; None to yield all lines.
        """
        for line in self._lines():
            if finished and finished[line.number]:
                continue
            entry = self._reader.read(line)
            if isinstance(entry, Request) and line.number in self._duplicates:
                first = self._duplicates[line.number]
                yield line.number, duplicate_line(line.number, entry, first)
            else:
                yield line.number, entry

    def copies_among(self, numbers: Iterable[int]) -> set[int]:
        """Return no line: each line runs itself."""
        del numbers
        return set()

    def _lines(self) -> Iterator[Line]:
        with self._path.open("rb") as stream:
            yield from lines_of(stream, self._reader.max_line_bytes)
