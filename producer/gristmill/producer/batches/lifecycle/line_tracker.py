"""The lines of a batch that wait for a result, and the changes since the last commit."""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gristmill.producer.batches.batch_state import BatchState, ByteRange, Checkpoint
from gristmill.producer.batches.lifecycle.row_buffer import RowBuffer
from gristmill.producer.batches.objects import (
    BatchRecord,
    BatchUsage,
    Closing,
    InputTokensDetails,
    OutputTokensDetails,
)
from gristmill.producer.batches.parts import Part
from gristmill.producer.batches.rows import (
    BadLine,
    Line,
    Names,
    bad_line_row,
    names_of,
    result_row,
    unanswered_row,
)
from gristmill.shared.answers import cached_tokens, reasoning_tokens
from gristmill.shared.request import Request
from gristmill.shared.results import Result

UNANSWERED: Mapping[Closing, tuple[str, str]] = {
    "cancelled": ("batch_cancelled", "the batch was cancelled before this line was finished"),
    "expired": ("batch_expired", "the completion window ended before this line was finished"),
}
"""Code and message of the rows that a closing batch gives to unfinished lines, by the status of their requests."""

FAILED: Mapping[str, str] = {
    "storage_quota_reached": "the tenant's storage quota was reached before this line was finished",
    "token_budget_used_up": "the tenant's token budget was used up before this line was finished",
}
"""Code of the error with which a batch closes as failed -> message of these rows."""


class LineTracker:
    """Follows each line of a batch from its reading to its row, from one commit to the next.

    Args:
        state: The batch as of its last commit.
        rows: Buffer that gets the rows.

    Attributes:
        rows: Rows that are not committed.
        outstanding: Lines that were read and have no row yet, each with its place in the input.
        outstanding_bytes: Bytes of these lines.
        written_ids: Ids of results whose rows are not committed.
        closing: Status with which the batch will end before all its lines have an answer; None if it runs on.
        errors: Why it closes as failed.
        line: Number of the last line that was read.
        offset: Byte at which the next line begins.
        is_read: True once the whole input was read.
    """

    def __init__(self, state: BatchState, rows: RowBuffer) -> None:
        self._batch = state.record.id
        self.rows = rows
        self.outstanding = {n: ByteRange(*place) for n, place in state.checkpoint.outstanding.items()}  # fmt: skip
        self.outstanding_bytes = sum(place.size for place in self.outstanding.values())
        self.written_ids: list[str] = []
        self.closing: Closing | None = state.record.closing
        self.errors = state.record.errors
        self.line, self.offset = state.checkpoint.line, state.checkpoint.offset
        self.is_read = state.checkpoint.is_read
        self._mean_row_bytes = 2**20
        self._counts: Counter[str] = Counter()
        self._usage: Counter[str] = Counter()

    @property
    def is_done(self) -> bool:
        """True once every line has its row."""
        return self.is_read and not self.outstanding

    @property
    def num_uncommitted(self) -> int:
        """Lines of the batch whose request or result is in Redis."""
        return len(self.outstanding) + len(self.written_ids)

    def id_of(self, number: int) -> str:
        """Return the id of a line's request."""
        return f"{self._batch}-{number}"

    def results_within(self, max_bytes: int, max_results: int) -> int:
        """Return how many results to read at once, from the mean size of the last rows."""
        return max(1, min(max_results, max_bytes // max(1, self._mean_row_bytes)))

    def expect(self, line: Line) -> None:
        """Note that a line is outstanding."""
        if line.number not in self.outstanding:
            self.outstanding[line.number] = ByteRange(line.start, line.end - line.start)
            self.outstanding_bytes += line.end - line.start

    def finish_bad(self, line: BadLine) -> None:
        """Give a bad line its row."""
        self._drop(line.number)
        self._add_error(bad_line_row(self._batch, line), "failed")

    def finish_unanswered(self, line: Line, entry: Request | BadLine) -> None:
        """Give a line that the queue never had the row of the batch's closing."""
        self._drop(line.number)
        names = (
            names_of(entry)
            if isinstance(entry, Request)
            else Names(entry.custom_id, entry.metadata)
        )
        self._add_unanswered(self.id_of(line.number), names)

    def finish(self, result: Result) -> bool:
        """Give a line the row of its result; return False if the line has a row already."""
        if not self._drop(number_of(result.id)):
            return False
        self.written_ids.append(result.id)
        row = result_row(result)
        self._mean_row_bytes = (7 * self._mean_row_bytes + len(row)) // 8
        self._usage["device_ms"] += result.device_ms
        if result.is_success:
            self.rows.add("output", row)
            self._counts["completed"] += 1
            self._usage.update(_usage_of(result))
        elif self.closing and result.status in UNANSWERED:
            self._add_unanswered(result.id, names_of(result))
        else:
            status = result.status if result.status in UNANSWERED else "failed"
            self._add_error(row, status)
        return True

    def take_changes(self, state: BatchState) -> tuple[BatchRecord, Checkpoint, list[Part]]:
        """Return record, checkpoint and new parts for the next commit. Flush the rows first.

        Args:
            state: The batch as of its last commit.
        """
        parts = self.rows.take_parts()
        checkpoint = replace(
            state.checkpoint, line=self.line, offset=self.offset, is_read=self.is_read,
            outstanding=dict(self.outstanding), has_parts=state.checkpoint.has_parts or bool(parts),
        )  # fmt: skip
        record = state.record.model_copy(update=self._changes(state.record))
        self._counts.clear()
        self._usage.clear()
        return record, checkpoint, parts

    def _changes(self, before: BatchRecord) -> dict[str, Any]:
        counts = before.request_counts
        more = {name: getattr(counts, name) + number for name, number in self._counts.items()}
        changes: dict[str, Any] = {
            "request_counts": counts.model_copy(update=more),
            "usage": _more_usage(before.usage, self._usage),
            "device_ms": before.device_ms + self._usage["device_ms"],
            "closing": self.closing,
            "errors": self.errors,
        }
        if self.is_done:
            closing = self.closing or "completed"
            changes |= {"status": "finalizing", "finalizing_at": int(time.time()), "closing": closing}  # fmt: skip
        return changes

    def _drop(self, number: int) -> bool:
        """Make a line no longer outstanding; return False if it was not."""
        place = self.outstanding.pop(number, None)
        if place is not None:
            self.outstanding_bytes -= place.size
        return place is not None

    def _add_unanswered(self, request_id: str, names: Names) -> None:
        closing = self.closing or "cancelled"
        code, message = UNANSWERED.get(closing) or self._failure()
        row = unanswered_row(request_id, names.custom_id, code, message, names.metadata)
        self._add_error(row, closing)

    def _failure(self) -> tuple[str, str]:
        """Return code and message of the rows of a batch that closes as failed."""
        codes = [error.code for error in self.errors.data] if self.errors else []
        code = next((code for code in codes if code in FAILED), "storage_quota_reached")
        return code, FAILED[code]

    def _add_error(self, row: bytes, count: str) -> None:
        self.rows.add("error", row)
        self._counts[count] += 1


def number_of(request_id: str) -> int:
    """Return the line number in the id of a request."""
    return int(request_id.rpartition("-")[2])


def _usage_of(result: Result) -> dict[str, int]:
    prompt_tokens, output_tokens = result.tokens
    return {
        "input": prompt_tokens, "output": output_tokens,
        "cached": cached_tokens(result.body), "reasoning": reasoning_tokens(result.body),
    }  # fmt: skip


def _more_usage(before: BatchUsage, more: Counter[str]) -> BatchUsage:
    added = BatchUsage(
        input_tokens=more["input"],
        input_tokens_details=InputTokensDetails(cached_tokens=more["cached"]),
        output_tokens=more["output"],
        output_tokens_details=OutputTokensDetails(reasoning_tokens=more["reasoning"]),
        total_tokens=more["input"] + more["output"],
    )
    return before.plus(added)
