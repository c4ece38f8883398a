"""The rows of a table as requests: the first pass checks all rows, the second one submits them.

It has the methods of `InputFile`, so `Collection` and `submit_only` take either.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

from gristmill.producer.batches.rows import BadLine, Line, LineReader, SkippedRow
from gristmill.producer.batches.submit_run import InputReport
from gristmill.producer.tables.output_trial import OutputTrial
from gristmill.producer.tables.row_chunks import Row
from gristmill.producer.tables.row_plan import PlanDraft, RowPlan, read_plan
from gristmill.producer.tables.second_asking import SecondAskings
from gristmill.producer.tables.table import AnyTable, Chunk
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.request import Request

NULL_VALUE = "null_value"
"""Code of a row with a null in a used column."""

DIGEST_BYTES = 16
"""Bytes of the digest of a request: enough that two of billions do not meet by chance."""

Entry = Request | BadLine | SkippedRow


class Maker(Protocol):
    """Makes the requests of rows: `RequestMaker` from a prompt, `CalledRequests` by a function."""

    @property
    def columns(self) -> Sequence[str] | None:
        """Columns that a row must bring; None for all."""
        ...

    def null_in(self, row: Mapping[str, Any]) -> str | None:
        """Return the first used column that is null in a row, or None."""
        ...

    def line(self, row: Mapping[str, Any]) -> bytes:
        """Return the request of a row as a line of a file."""
        ...

    def is_shared(self, request: Request) -> bool:
        """Return whether a request and others like it run once."""
        ...


@dataclass(slots=True)
class TableReport(InputReport):
    """The outcome of a check of all rows. `num_lines` are rows; `num_bad` counts no nulls.

    Attributes:
        num_null: Rows with a null in a used column.
        num_copies: Rows that ask the same as an earlier one, which runs for them.
    """

    num_null: int = 0
    num_copies: int = 0

    def count(self, entry: Entry) -> None:
        """Count one row."""
        is_null = isinstance(entry, SkippedRow) or (
            isinstance(entry, BadLine) and entry.code == NULL_VALUE
        )
        if is_null:
            self.num_lines += 1
            self.num_null += 1
        elif not isinstance(entry, SkippedRow):
            InputReport.count(self, entry)

    @classmethod
    def restored(cls, facts: dict[str, Any]) -> "TableReport":
        """Return the report of the process that began the run."""
        return cls(**facts)

    def facts(self) -> dict[str, Any]:
        """Return what a resume must know."""
        names = ("num_lines", "num_bad", "num_null", "num_copies")
        return {name: getattr(self, name) for name in names}


class TableInput:
    """The requests of one table.

    Args:
        table: The rows.
        maker: Makes the requests; its columns were checked.
        reader: Reads them, by the rules that lines of a file have.
        plan: Path of the plan on disk.
        skips_null: True leaves a row unanswered that has a null in a used column; False gives it an error.
        skip_option: Option that sets `skips_null`, in the words of the user; the error names it.
        trial: Refuses rows that the output cannot hold; None without an output.
        second: Keeps the requests that may be asked again; None if none may.
    """

    def __init__(
        self,
        table: AnyTable,
        maker: Maker,
        reader: LineReader,
        plan: Path,
        *,
        skips_null: bool,
        skip_option: str = "--skip-null",
        trial: OutputTrial | None = None,
        second: SecondAskings | None = None,
    ) -> None:
        self._table = table
        self._skips_null = skips_null
        self._skip_option = skip_option
        self._maker = maker
        self._reader = reader
        self._path = plan
        self._trial = trial
        self._second = second
        self.plan: RowPlan | None = None

    def check(self) -> TableReport:
        """Read all rows, report those that cannot be asked, and write the plan.

        Raises:
            InvalidRequest: A file is damaged, or the output cannot hold a row.
        """
        report = TableReport()
        with PlanDraft(self._path) as draft:
            for chunk in self._table.chunks():
                if self._trial:  # it converts all columns, also those that no request needs
                    self._trial.check(chunk)
                digests: dict[int, bytes] = {}
                for number, entry in self._entries(chunk, chunk.dicts(self._maker.columns)):
                    report.count(entry)
                    if isinstance(entry, Request) and self._maker.is_shared(entry):
                        digests[number] = _digest(entry)
                report.num_copies += draft.add(digests)
            self.plan = draft.finish(report.facts())
        return report

    def restore(self) -> TableReport:
        """Return the report of an earlier process; check the rows again if its plan is gone."""
        self.plan = read_plan(self._path)
        return TableReport.restored(self.plan.facts) if self.plan else self.check()

    def entries(self, finished: bytearray | None = None) -> Iterator[tuple[int, Entry]]:
        """Yield each row's number with its request, or why it has none. Call `check` or `restore` first.

        Copies are left out while the row that runs for them is not finished.

        Args:
            finished: Element n is 1 if row n has its values and is left out; None to yield all rows.
        """
        start = _first_unfinished(finished) if finished else 0
        for chunk in self._table.chunks(start):
            last = chunk.first + len(chunk) - 1
            left_out = self._copies(chunk.first, last, finished)
            if finished:
                done = finished[chunk.first : last + 1]
                if all(done):
                    continue
                left_out |= {chunk.first + index for index, is_done in enumerate(done) if is_done}
            rows = chunk.dicts(self._maker.columns)
            for number, entry in self._entries(chunk, rows, left_out):
                if self._second and isinstance(entry, Request):
                    self._second.keep(number, entry)
                yield number, entry

    def copies_among(self, numbers: Iterable[int]) -> set[int]:
        """Return those of some rows that ask the same as an earlier one, which runs for them."""
        return {row for row in numbers if self.plan and self.plan.copies_between(row, row)}

    def close(self) -> None:
        """Close the plan."""
        if self.plan:
            self.plan.close()

    def _copies(self, first: int, last: int, finished: bytearray | None) -> set[int]:
        """Return the copies among some rows. One whose first row is finished without it runs itself."""
        copies = self.plan.copies_between(first, last) if self.plan else {}
        return {row for row, of in copies.items() if not (finished and finished[of])}

    def _entries(
        self, chunk: Chunk, rows: Sequence[Row], left_out: set[int] | None = None
    ) -> Iterator[tuple[int, Entry]]:
        for number, row in enumerate(rows, chunk.first):
            if not (left_out and number in left_out):
                yield number, self._entry(chunk, number, row)

    def _entry(self, chunk: Chunk, number: int, row: Row) -> Entry:
        where = chunk.where(number)
        if (null := self._maker.null_in(row)) is not None:
            if self._skips_null:
                return SkippedRow(number)
            reason = f"column {null!r} is null; fill it, or leave such rows unanswered with {self._skip_option}"
            return BadLine(number, reason, None, NULL_VALUE, where=where)
        try:
            raw = self._maker.line(row)
        except InvalidRequest as error:
            return BadLine(number, error.reason, None, error.code, where=where)
        except (TypeError, ValueError) as error:
            return BadLine(number, f"it has no JSON: {error}; correct the row", None, where=where)
        entry = self._reader.read(Line(number, raw, 0, 0))
        return entry.at(where) if isinstance(entry, BadLine) else entry


def _digest(request: Request) -> bytes:
    return blake2b(request.body, digest_size=DIGEST_BYTES, key=request.endpoint.encode()).digest()


def _first_unfinished(finished: bytearray) -> int:
    """Return how many rows at the beginning are finished."""
    first = finished.find(0, 1)
    return (len(finished) if first < 0 else first) - 1
