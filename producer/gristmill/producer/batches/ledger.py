"""The books of one slice: what of a batch is outstanding, and what was learned since the last commit."""

import time
from collections import Counter
from dataclasses import replace
from typing import Any, Literal

from gristmill.producer.batches.input import BadLine, custom_id_of, name_of
from gristmill.producer.batches.lines import Line
from gristmill.producer.batches.objects import BatchRecord, BatchUsage
from gristmill.producer.batches.parts import Rows
from gristmill.producer.batches.progress import Part, Place, Progress
from gristmill.producer.batches.registry import BatchState
from gristmill.producer.batches.rows import bad_line_row, result_row, unanswered_row
from gristmill.shared.request import Request
from gristmill.shared.results import Result

Closing = Literal["completed", "expired", "cancelled", "failed"]

REASONS = {
    "cancelled": ("batch_cancelled", "the batch was cancelled before this line was finished"),
    "expired": ("batch_expired", "the completion window ended before this line was finished"),
}


class Ledger:
    """Begins at a commit, and says what the next one has to write.

    Args:
        state: As it was committed last.
        rows: Where rows go.

    Attributes:
        rows: Those that are not committed.
        outstanding: Lines that have no row yet and were read -> where they lie.
        outstanding_bytes: Bytes of these lines.
        written: Ids of the results whose rows are not committed.
        closing: What ends the batch before all is answered.
        line: Last line that was read.
        offset: Where the next begins, in bytes.
        is_read: Whether that was the last.
    """

    def __init__(self, state: BatchState, rows: Rows) -> None:
        self._batch = state.record.id
        self.rows = rows
        self.outstanding = {n: Place(*place) for n, place in state.progress.outstanding.items()}
        self.outstanding_bytes = sum(place.size for place in self.outstanding.values())
        self.written: list[str] = []
        self.closing: Closing | None = state.record.closing
        self.line, self.offset = state.progress.line, state.progress.offset
        self.is_read = state.progress.is_read
        self._mean_row_bytes = 2**20
        self._counts: Counter[str] = Counter()
        self._usage: Counter[str] = Counter()

    @property
    def is_done(self) -> bool:
        """Whether every line has its row."""
        return self.is_read and not self.outstanding

    @property
    def num_unwritten(self) -> int:
        """Requests whose record or result is in Redis on behalf of the batch."""
        return len(self.outstanding) + len(self.written)

    def id_of(self, number: int) -> str:
        """Return the id of a line's request."""
        return f"{self._batch}-{number}"

    def results_within(self, max_bytes: int, max_results: int) -> int:
        """Return how many results may be read at once, if they are as large as the last ones."""
        return max(1, min(max_results, max_bytes // max(1, self._mean_row_bytes)))

    def expect(self, line: Line) -> None:
        """Note that a line is outstanding."""
        if line.number not in self.outstanding:
            self.outstanding[line.number] = Place(line.start, line.end - line.start)
            self.outstanding_bytes += line.end - line.start

    def end_bad(self, line: BadLine) -> None:
        """Give a line that is no request its row."""
        self._drop(line.number)
        self._add_error(bad_line_row(self._batch, line), "failed")

    def end_unanswered(self, line: Line, entry: Request | BadLine) -> None:
        """Give a line that never was in the queue the row that says why."""
        self._drop(line.number)
        custom_id = custom_id_of(entry) if isinstance(entry, Request) else name_of(line)
        self._end_closed(self.id_of(line.number), custom_id)

    def finish(self, result: Result) -> bool:
        """Give a line the row of its result; False if it has one."""
        if not self._drop(number_of(result.id)):
            return False
        self.written.append(result.id)
        row = result_row(result)
        self._mean_row_bytes = (7 * self._mean_row_bytes + len(row)) // 8
        if result.is_success:
            self.rows.add("output", row)
            self._counts["completed"] += 1
            prompt_tokens, output_tokens = result.tokens
            self._usage["input_tokens"] += prompt_tokens
            self._usage["output_tokens"] += output_tokens
        elif self.closing and result.status in REASONS:
            self._end_closed(result.id, str((result.metadata or {}).get("custom_id")))
        else:
            status = result.status if result.status in REASONS else "failed"
            self._add_error(row, status)
        return True

    def commit(self, state: BatchState) -> tuple[BatchRecord, Progress, list[Part]]:
        """Return what the next commit writes; the rows must be flushed."""
        parts = self.rows.take()
        progress = replace(
            state.progress, line=self.line, offset=self.offset, is_read=self.is_read,
            outstanding=dict(self.outstanding), has_parts=state.progress.has_parts or bool(parts),
        )  # fmt: skip
        record = state.record.model_copy(update=self._changes(state.record))
        self._counts.clear()
        self._usage.clear()
        return record, progress, parts

    def _changes(self, before: BatchRecord) -> dict[str, Any]:
        counts = before.request_counts
        more = {name: getattr(counts, name) + number for name, number in self._counts.items()}
        changes: dict[str, Any] = {
            "request_counts": counts.model_copy(update=more),
            "usage": _more_usage(before.usage, self._usage),
            "closing": self.closing,
        }
        if self.is_done:
            closing = self.closing or "completed"
            changes |= {"status": "finalizing", "finalizing_at": int(time.time()), "closing": closing}  # fmt: skip
        return changes

    def _drop(self, number: int) -> bool:
        """Make a line no longer outstanding; False if it was not."""
        place = self.outstanding.pop(number, None)
        if place is not None:
            self.outstanding_bytes -= place.size
        return place is not None

    def _end_closed(self, request_id: str, custom_id: str) -> None:
        closing = self.closing or "cancelled"
        self._add_error(unanswered_row(request_id, custom_id, *REASONS[closing]), closing)

    def _add_error(self, row: bytes, count: str) -> None:
        self.rows.add("error", row)
        self._counts[count] += 1


def number_of(request_id: str) -> int:
    """Return the line of a request."""
    return int(request_id.rpartition("-")[2])


def _more_usage(before: BatchUsage, more: Counter[str]) -> BatchUsage:
    input_tokens = before.input_tokens + more["input_tokens"]
    output_tokens = before.output_tokens + more["output_tokens"]
    return BatchUsage(
        input_tokens=input_tokens, output_tokens=output_tokens, total_tokens=input_tokens + output_tokens
    )  # fmt: skip
