"""Validate the input of a batch: the first step of a steward."""

import time
from array import array
from dataclasses import replace
from functools import partial

from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.batches.lifecycle.early_end import end_without_rows
from gristmill.producer.batches.lifecycle.leased_batch import LeasedBatch
from gristmill.producer.batches.lifecycle.line_validator import LineValidator
from gristmill.producer.batches.lifecycle.row_buffer import MAX_BUFFER_BYTES, RowBuffer
from gristmill.producer.batches.objects import BatchError, BatchErrors
from gristmill.producer.batches.parts import parts_folder
from gristmill.producer.batches.rows import BadLine, bad_line_row, lines_of
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.file_format import check_stream
from gristmill.shared.fleet import read_fleet

MAX_ERRORS = 100
"""Errors of a file that its batch keeps; the others are counted."""

MAX_MESSAGE_CHARS = 1_000


class Validation:
    """One pass over the whole input. Memory: 80 MB for the custom_ids of a million lines.

    Args:
        store: The batches of the queue.
        leased: The batch.
    """

    def __init__(self, store: BatchStore, leased: LeasedBatch) -> None:
        self._store = store
        self._leased = leased
        self._reader = leased.line_reader()
        self._rows = RowBuffer(store.storage, leased.id)
        self._errors: list[BatchError] = []
        self._skipped = array("Q")

    async def run(self, input_path: str) -> None:
        """Read the whole input. Afterwards the batch is in progress or has ended.

        An interrupted pass leaves the batch as it was. The next pass starts from the first line.

        Args:
            input_path: Path of the input in the storage.
        """
        if failure := await self._leased.run_blocking(partial(self._foreign_format, input_path)):
            await end_without_rows(self._leased, failure)
            return
        validator = await self._validator()
        if not await self._read(validator, input_path):
            await self._leased.reload()  # the record then has `cancelling_at`
            await end_without_rows(self._leased)
        elif failure := self._failure(validator):
            await end_without_rows(self._leased, failure)
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
        settings = self._store.settings
        fleet = await read_fleet(self._store.queue) if settings.check_models else None
        domains = settings.allowed_media_domains
        return LineValidator(self._leased.record, self._reader, domains, fleet)

    async def _read(self, validator: LineValidator, input_path: str) -> bool:
        """Check the lines; return False if a cancel stopped the pass."""
        with self._store.storage.open(input_path) as stream:
            lines = lines_of(stream, self._reader.max_line_bytes)
            check_next = partial(validator.check_next, lines)
            while (found := await self._leased.run_blocking(check_next)) is not None:
                for bad in found:
                    self._note(bad)
                if self._rows.num_bytes > MAX_BUFFER_BYTES:
                    await self._leased.run_blocking(self._rows.flush)
                if validator.num_lines > self._store.settings.max_batch_requests:
                    break
                if await self._store.records.is_cancelled(self._leased.id):
                    return False
                await self._leased.extend()
        return True

    def _note(self, bad: BadLine) -> None:
        if len(self._errors) < MAX_ERRORS:
            message = str(bad)[:MAX_MESSAGE_CHARS]
            self._errors.append(BatchError(code=bad.code, message=message, line=bad.number))
        if self._leased.record.mode == "lenient":
            self._rows.add("error", bad_line_row(self._leased.id, bad))
            self._skipped.append(bad.number)

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

    async def _begin_execution(self, validator: LineValidator) -> None:
        """Commit the counts, the error rows and the skipped lines; the batch is then in progress."""
        before = self._leased.state
        path = await self._write_skipped()
        await self._leased.run_blocking(self._rows.flush)
        parts = self._rows.take_parts()
        counts = {"total": validator.num_lines, "failed": len(self._skipped)}
        record = before.record.model_copy(
            update={
                "status": "in_progress",
                "in_progress_at": int(time.time()),
                "model": validator.model or None,
                "request_counts": before.record.request_counts.model_copy(update=counts),
            }
        )
        checkpoint = replace(before.checkpoint, skipped=path, has_parts=bool(parts))
        await self._leased.commit(record, checkpoint, parts=parts)

    async def _write_skipped(self) -> str:
        """Write the numbers of the bad lines and return their path; "" without bad lines."""
        if not self._skipped:
            return ""
        storage = self._store.storage
        path = storage.new_path(parts_folder(self._leased.id), "skipped")
        await self._leased.run_blocking(partial(storage.write, path, self._skipped.tobytes()))
        return path
