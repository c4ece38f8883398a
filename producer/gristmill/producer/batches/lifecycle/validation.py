"""Validate the input of a batch: the first step of a steward."""

import time
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from gristmill.producer.batches.batch_state import ChildPlan, Validated
from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.batches.lifecycle.early_end import end_without_rows
from gristmill.producer.batches.lifecycle.execution import MayGoOn
from gristmill.producer.batches.lifecycle.leased_batch import LeasedBatch
from gristmill.producer.batches.lifecycle.line_queues import names_of_queues, read_line_queues
from gristmill.producer.batches.lifecycle.line_validator import MAX_KEPT, LineValidator, described
from gristmill.producer.batches.lifecycle.row_buffer import MAX_BUFFER_BYTES, RowBuffer
from gristmill.producer.batches.objects import BatchError, BatchErrors, BatchRecord
from gristmill.producer.batches.parts import parts_folder
from gristmill.producer.batches.rows import BadLine, CustomIds, bad_line_row, lines_of
from gristmill.shared.chunking import chunks
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.file_format import check_stream

COUNTED_LINES = 100_000
"""Lines that are counted in one step: a thread holds the interpreter for less than 10 ms."""

Outcome = Literal["ended", "cancelled", "paused"]


class Validation:
    """One slice of the pass over the input. Memory: 80 MB for the custom_ids of a million lines.

    Args:
        store: The batches of the queue.
        leased: The batch.
    """

    def __init__(self, store: BatchStore, leased: LeasedBatch) -> None:
        self._store = store
        self._leased = leased
        self._before = leased.state.checkpoint.validated
        self._reader = leased.line_reader()
        self._rows = RowBuffer(store.storage, leased.id)
        self._errors = [BatchError(**error) for error in self._before.errors]

    async def run(self, input_path: str, may_go_on: MayGoOn) -> None:
        """Check lines until the input ends, or until other batches should have their turn.

        At the end of the input the batch is in progress, or has ended. The next slice goes on from
        the last commit.

        Args:
            input_path: Path of the input in the storage.
            may_go_on: Called after each step; False ends the slice.
        """
        if failure := await self._leased.run_blocking(partial(self._foreign_format, input_path)):
            await end_without_rows(self._leased, failure)
            return
        validator = await self._validator()
        outcome = await self._read(validator, input_path, may_go_on)
        if outcome == "cancelled":
            await self._leased.reload()  # the record then has `cancelling_at`
            await end_without_rows(self._leased)
        elif outcome == "paused":
            await self._pause(validator)
        elif failure := self._failure(validator):
            await end_without_rows(self._leased, failure, _warnings(validator))
        else:
            await self._begin_execution(validator)

    def _foreign_format(self, input_path: str) -> BatchErrors | None:
        """Return the error of a file that is not JSONL at all, or None."""
        try:
            with self._store.storage.open(input_path) as stream:
                check_stream(stream, "the file")
        except InvalidRequest as error:
            return BatchErrors(data=(BatchError(code=error.code, message=error.reason, line=1),))
        return None

    async def _validator(self) -> LineValidator:
        domains = self._store.settings.allowed_media_domains
        queues = await read_line_queues(self._store, self._leased)
        custom_ids = await self._leased.run_blocking(self._known_custom_ids)
        return LineValidator(
            self._leased.record, self._reader, domains, queues, before=self._before, custom_ids=custom_ids
        )  # fmt: skip

    def _known_custom_ids(self) -> CustomIds:
        return CustomIds(self._read_array("Q", self._before.custom_ids), self._before.num_bad)

    def _read_array(self, typecode: str, paths: Sequence[str]) -> "array[int]":
        """Read numbers that earlier slices wrote."""
        numbers = array(typecode)
        for path in paths:
            numbers.frombytes(b"".join(self._store.storage.chunks(path)))
        return numbers

    async def _read(self, validator: LineValidator, input_path: str, may_go_on: MayGoOn) -> Outcome:
        """Check lines until something stops the slice."""
        before = self._before
        with self._store.storage.open(input_path, before.offset) as stream:
            lines = lines_of(
                stream, self._reader.max_line_bytes, number=before.line, offset=before.offset
            )
            check_next = partial(validator.check_next, lines)
            while (found := await self._leased.run_blocking(check_next)) is not None:
                for bad in found:
                    self._note(bad)
                if self._rows.num_bytes > MAX_BUFFER_BYTES:
                    await self._leased.run_blocking(self._rows.flush)
                if validator.num_lines > self._store.settings.max_batch_requests:
                    break
                if await self._store.records.is_cancelled(self._leased.id):
                    return "cancelled"
                await self._leased.extend()
                if not may_go_on(0):
                    return "paused"
        return "ended"

    def _note(self, bad: BadLine) -> None:
        if len(self._errors) < MAX_KEPT:
            self._errors.append(described(bad))
        if self._leased.record.mode == "lenient":
            self._rows.add("error", bad_line_row(self._leased.id, bad))

    def _failure(self, validator: LineValidator) -> BatchErrors | None:
        """Return the errors for which the whole file is refused, or None."""
        max_requests = self._store.settings.max_batch_requests
        if validator.num_lines == 0:
            message = "the file has no requests; write one JSON object a line"
            return BatchErrors(data=(BatchError(code="empty_file", message=message),))
        if validator.num_lines > max_requests:
            message = (
                f"the file has more than {max_requests:,} lines, the limit of one batch; split it, or"
                " ask the operator to raise GRISTMILL_MAX_BATCH_REQUESTS"
            )
            too_many = BatchError(code="too_many_requests", message=message, line=max_requests + 1)
            return BatchErrors(data=(too_many, *self._errors))
        if self._leased.record.mode == "lenient" or not self._errors:
            return None
        if more := validator.num_bad - len(self._errors):
            message = f"and {more:,} more lines; correct them, or create a lenient batch"
            self._errors.append(BatchError(code="more_errors", message=message))
        return BatchErrors(data=tuple(self._errors))

    async def _pause(self, validator: LineValidator) -> None:
        """Commit how far the input is checked; the next slice goes on there."""
        state = self._leased.state
        digests = validator.custom_ids.digests(validator.num_lines)[self._before.line :]
        path = await self._write_array("custom_ids", digests)
        queues = list(self._before.queues)
        if validator.taken_by:
            queues.append(await self._write_array("queues", validator.taken_by))
        await self._leased.run_blocking(self._rows.flush)
        validated = Validated(
            line=validator.num_lines, offset=validator.offset, num_bad=validator.num_bad, model=validator.model,
            errors=[error.model_dump() for error in self._errors],
            warnings=[warning.model_dump() for warning in validator.warnings], num_warned=validator.num_warned,
            custom_ids=[*self._before.custom_ids, path], queues=queues,
        )  # fmt: skip
        checkpoint = replace(state.checkpoint, validated=validated, has_parts=True)
        await self._leased.commit(state.record, checkpoint, parts=self._rows.take_parts())

    async def _begin_execution(self, validator: LineValidator) -> None:
        """Commit the counts, the error rows and the skipped lines; the batch is then in progress."""
        before = self._leased.state
        find_skipped = partial(self._skipped, validator)
        skipped = await self._leased.run_blocking(find_skipped) if validator.num_bad else array("Q")
        path = await self._write_array("skipped", skipped) if skipped else ""
        planned = await self._plan_children(validator)
        await self._leased.run_blocking(self._rows.flush)
        parts = self._rows.take_parts()
        has_parts = before.checkpoint.has_parts or bool(parts) or bool(planned)
        checkpoint = replace(
            before.checkpoint, skipped=path, has_parts=has_parts, validated=Validated(), planned=planned
        )  # fmt: skip
        record = _validated(before.record, validator, len(skipped), tuple(planned))
        await self._leased.commit(record, checkpoint, parts=parts)

    def _skipped(self, validator: LineValidator) -> "array[int]":
        """Return the numbers of the bad lines of a lenient batch: no others are without a digest."""
        digests = validator.custom_ids.digests(validator.num_lines)
        return array("Q", (number for number, digest in enumerate(digests, 1) if not digest))

    async def _plan_children(self, validator: LineValidator) -> dict[str, ChildPlan]:
        """Return what the child of each queue runs; none if the batch's own queue takes all lines."""
        names = names_of_queues(self._leased.record, self._store.queue.keys.queue)
        if len(names) == 1:
            return {}
        return await self._leased.run_blocking(partial(self._plan, names, validator.taken_by))

    def _plan(self, names: Sequence[str], taken_last: "array[int]") -> dict[str, ChildPlan]:
        """Write the queue of each line, and return the lines of each queue that takes any but for bad ones."""
        taken_by = self._read_array("H", self._before.queues) + taken_last
        num_lines: Counter[int] = Counter()
        for chunk in chunks(taken_by, COUNTED_LINES):
            num_lines.update(chunk)
        used = sorted(set(num_lines) - {0})
        if used in ([], [1]):
            return {}
        path = self._write("queues", taken_by)
        return {names[number - 1]: ChildPlan(path, number, num_lines[number]) for number in used}

    async def _write_array(self, name: str, numbers: "array[int]") -> str:
        """Write numbers into a new object and return its path."""
        return await self._leased.run_blocking(partial(self._write, name, numbers))

    def _write(self, name: str, numbers: "array[int]") -> str:
        path = self._store.storage.new_path(parts_folder(self._leased.id), name)
        self._store.storage.write(path, numbers.tobytes())
        return path


def _validated(
    record: BatchRecord, validator: LineValidator, num_skipped: int, children: tuple[str, ...]
) -> BatchRecord:
    """Return the record of a batch that is in progress, with its counts, warnings and children."""
    counts = {"total": validator.num_lines, "failed": num_skipped}
    update = {
        "status": "in_progress",
        "in_progress_at": int(time.time()),
        "model": validator.model or None,
        "warnings": _warnings(validator),
        "request_counts": record.request_counts.model_copy(update=counts),
        "children": children,
        "order": "input" if children else record.order,
    }
    return record.model_copy(update=update)


def _warnings(validator: LineValidator) -> BatchErrors | None:
    """Return the warnings about the good lines, or None."""
    kept = list(validator.warnings)
    if more := validator.num_warned - len(kept):
        kept.append(BatchError(code="more_warnings", message=f"and {more:,} more lines"))
    return BatchErrors(data=tuple(kept)) if kept else None
