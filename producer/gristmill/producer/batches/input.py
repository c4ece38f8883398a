"""The requests of one batch file: checked as a whole first, then read again as they are submitted."""

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import orjson

from gristmill.producer.batches.lines import Line, lines_of
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.fleet import Fleet
from gristmill.shared.request import Request, shown
from gristmill.shared.request_json import MAX_CUSTOM_ID, max_element_bytes, request_from_json

NUM_SHOWN = 10
"""Errors of a file that are shown; the others are counted."""

MAX_NAMED = 1000
"""Duplicates whose earlier line is looked up; a look-up reads 8 bytes a line."""


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no request.

    Attributes:
        number: Which line, from 1.
        reason: What is wrong with it and the remedy.
        custom_id: What the line calls itself, else its number.
        code: Which kind of rule it breaks, for programs.
    """

    number: int
    reason: str
    custom_id: str
    code: str = InvalidRequest.code

    def __str__(self) -> str:
        return f"line {self.number:,}: {self.reason}"


@dataclass(slots=True)
class Report:
    """What a check of a whole file found.

    Attributes:
        num_lines: Requests and bad lines.
        num_bad: Lines that are no request.
        bad: The first `NUM_SHOWN` of them.
        duplicates: Line -> the earlier line with the same custom_id.
    """

    num_lines: int = 0
    num_bad: int = 0
    bad: list[BadLine] = field(default_factory=list)
    duplicates: dict[int, int] = field(default_factory=dict)


class LineReader:
    """Reads the lines of one batch file as requests, in any form that `request_from_json` takes.

    Args:
        run: Line n becomes the request `<run>-<n>`, so reading it again gives the same ids.
        max_request_bytes: Longest body that is accepted.
        default_endpoint: For lines that name none.
        defaults: Fields of `Request` for lines that do not set them.
        fleet: What the workers serve: what nobody would run is no request. None if that does not matter.
    """

    def __init__(
        self,
        run: str,
        *,
        max_request_bytes: int,
        default_endpoint: str | None = None,
        defaults: Mapping[str, Any] | None = None,
        fleet: Fleet | None = None,
    ) -> None:
        self._run = run
        self._max_request_bytes = max_request_bytes
        self._default_endpoint = default_endpoint
        self._defaults = defaults or {}
        self._fleet = fleet

    @property
    def max_line_bytes(self) -> int:
        """How much of a line has to be read; what is longer cannot be a request."""
        return max_element_bytes(self._max_request_bytes)

    def read(self, line: Line) -> Request | BadLine:
        """Return the request of a line, with its custom_id in the metadata, or why it is none."""
        try:
            request = request_from_json(
                line.raw,
                max_request_bytes=self._max_request_bytes,
                line_id=f"{self._run}-{line.number}",
                default_endpoint=self._default_endpoint,
                defaults=self._defaults,
            )
        except InvalidRequest as error:
            return self._refused(line, error, name_of(line))
        try:
            if self._fleet:
                self._fleet.check(request)
        except InvalidRequest as error:
            return self._refused(line, error, custom_id_of(request))
        return request

    def _refused(self, line: Line, error: InvalidRequest, custom_id: str) -> BadLine:
        reason = str(error).removeprefix(f"request {self._run}-{line.number}: ")
        return BadLine(line.number, reason, custom_id, error.code)


class BatchInput:
    """One JSONL file of requests on this machine.

    Args:
        path: The file; read twice, so not a pipe.
        reader: Turns its lines into requests.
    """

    def __init__(self, path: Path, reader: LineReader) -> None:
        self._path = path
        self._reader = reader
        self._duplicates: Mapping[int, int] = {}

    def check(self) -> Report:
        """Read the whole file; what stays in memory is a digest a line, not its text."""
        report = Report()
        seen = Seen()
        for line in self._lines():
            request = self._reader.read(line)
            if isinstance(request, Request):
                first = seen.note(custom_id_of(request), line.number)
                if first is not None:
                    report.duplicates[line.number] = first
                    request = duplicate(line.number, request, first)
            _note(report, request)
        self._duplicates = report.duplicates
        return report

    def entries(self, finished: bytearray | None = None) -> Iterator[tuple[int, Request | BadLine]]:
        """Yield line numbers with their requests, after `check`.

        Args:
            finished: Lines to leave out: those whose element is not 0.
        """
        for line in self._lines():
            if finished and finished[line.number]:
                continue
            request = self._reader.read(line)
            if isinstance(request, Request) and line.number in self._duplicates:
                yield line.number, duplicate(line.number, request, self._duplicates[line.number])
            else:
                yield line.number, request

    def _lines(self) -> Iterator[Line]:
        with self._path.open("rb") as stream:
            yield from lines_of(stream, self._reader.max_line_bytes)


def custom_id_of(request: Request | BadLine) -> str:
    """Return what a line calls itself: its `custom_id`, else its `id`, else its number."""
    if isinstance(request, BadLine):
        return request.custom_id
    return str((request.metadata or {})["custom_id"])


class Seen:
    """The custom_ids of a file as 8-byte digests: 80 MB for a million lines."""

    def __init__(self) -> None:
        self._digests: set[int] = set()
        self._by_line = array("Q")
        self._num_duplicates = 0

    def note(self, custom_id: str, number: int) -> int | None:
        """Remember a line's custom_id; returns the earlier line that has it, or None.

        After `MAX_NAMED` duplicates the earlier line is not looked up any more, and 0 is returned.
        """
        digest = _digest(custom_id)
        is_new = digest not in self._digests
        self._digests.add(digest)
        self._by_line.extend([0] * (number - 1 - len(self._by_line)))
        self._by_line.append(digest if is_new else 0)
        if is_new:
            return None
        self._num_duplicates += 1
        return 0 if self._num_duplicates > MAX_NAMED else self._by_line.index(digest) + 1


def _digest(custom_id: str) -> int:
    return int.from_bytes(blake2b(custom_id.encode(), digest_size=8).digest())


def name_of(line: Line) -> str:
    """Return the custom_id of a line that is no request, if it can be read, else its number."""
    try:
        custom_id = orjson.loads(line.raw)["custom_id"]
    except (ValueError, TypeError, KeyError, IndexError):
        return str(line.number)
    return custom_id[:MAX_CUSTOM_ID] if isinstance(custom_id, str) else str(line.number)


def duplicate(number: int, request: Request, first: int) -> BadLine:
    """Return the bad line that a custom_id makes which line `first` has too; 0 for some earlier one."""
    custom_id = custom_id_of(request)
    earlier = f"line {first:,}" if first else "an earlier line"
    reason = f"custom_id {shown(custom_id)} stands on {earlier} too; give each line its own"
    return BadLine(number, reason, custom_id, "duplicate_custom_id")


def _note(report: Report, request: Request | BadLine) -> None:
    report.num_lines += 1
    if isinstance(request, BadLine):
        report.num_bad += 1
        if len(report.bad) < NUM_SHOWN:
            report.bad.append(request)
