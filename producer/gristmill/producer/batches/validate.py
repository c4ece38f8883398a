"""Validate the input of a batch: the first thing that a steward does with it."""

import time
from array import array
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from gristmill.producer.batches.input import BadLine, LineReader, Seen, custom_id_of, duplicate
from gristmill.producer.batches.lines import Line, lines_of, some
from gristmill.producer.batches.objects import BatchError, BatchErrors, BatchRecord
from gristmill.producer.batches.parts import MAX_BYTES, Rows, folder_of
from gristmill.producer.batches.registry import BatchLease, BatchState
from gristmill.producer.batches.rows import bad_line_row
from gristmill.producer.batches.service import Batches
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.fleet import Fleet, read_fleet
from gristmill.shared.media import check_media
from gristmill.shared.request import Request

MAX_ERRORS = 100
"""Errors of a file that are kept; the others are counted."""

MAX_MESSAGE_CHARS = 1_000
LINES_A_STEP = 5_000


class Checker:
    """Checks the lines of one file, one after the other.

    Args:
        batch: What they must fit; in a strict one all must name the same model, as with OpenAI.
        reader: Turns lines into requests.
        media_domains: Hosts from which anything may be fetched.
        fleet: What the workers serve; None if lines are not to be refused for it.
    """

    def __init__(
        self,
        batch: BatchRecord,
        reader: LineReader,
        media_domains: frozenset[str],
        fleet: Fleet | None,
    ) -> None:
        self._batch = batch
        self._fleet = fleet
        self._media_domains = media_domains
        self._reader = reader
        self._seen = Seen()
        self.model: str | None = None
        self.num_lines = 0
        self.num_bad = 0

    def check_some(self, lines: Iterator[Line]) -> list[BadLine] | None:
        """Take the next lines and return what is wrong with them; None at the end. Blocks on the storage."""
        taken = some(lines, LINES_A_STEP)
        return [bad for line in taken if (bad := self._check(line))] if taken else None

    def _check(self, line: Line) -> BadLine | None:
        self.num_lines = line.number
        entry = self._reader.read(line)
        if isinstance(entry, BadLine):
            bad: BadLine | None = entry
        else:
            bad = self._misfit(line.number, entry) or self._unlike_others(line.number, entry)
        self.num_bad += bad is not None
        return bad

    def _misfit(self, number: int, request: Request) -> BadLine | None:
        """Return why a request may not run in this batch, if so."""
        custom_id = custom_id_of(request)
        try:
            check_media(request, self._media_domains, look_up=False)
        except InvalidRequest as error:
            reason = str(error).removeprefix(f"request {request.id}: ")
            return BadLine(number, reason, custom_id, "invalid_media_url")
        if request.endpoint != self._batch.endpoint:
            reason = f"its url is {request.endpoint}, that of the batch {self._batch.endpoint}; give each url a batch"
            return BadLine(number, reason, custom_id, "url_mismatch")
        if self._fleet and (refusal := self._fleet.refusal(request)):
            reason = str(refusal).removeprefix(f"request {request.id}: ")
            return BadLine(number, reason, custom_id, refusal.code)
        if request.tenant != self._batch.tenant or request.batch:
            reason = "it names a tenant or a batch; a line runs for whoever made the batch, so leave both out"
            return BadLine(number, reason, custom_id)
        return None

    def _unlike_others(self, number: int, request: Request) -> BadLine | None:
        """Return why a request may not stand beside the others, if so."""
        custom_id = custom_id_of(request)
        first = self._seen.note(custom_id, number)
        if first is not None:
            return duplicate(number, request, first)
        if self.model is None:
            self.model = request.model
        if self._batch.mode == "strict" and request.model != self.model:
            reason = (
                f"its model is {request.model!r}, that of the lines before {self.model!r}; give each model a batch,"
                " or create it as lenient"
            )
            return BadLine(number, reason, custom_id, "model_mismatch")
        return None


async def validate(batches: Batches, lease: BatchLease, state: BatchState, path: str) -> None:
    """Read the whole input; the batch is in progress afterwards, or has failed.

    Memory: 80 MB for a million lines, for their custom_ids. Killed on the way, it begins anew.
    """
    record = state.record
    fleet = await read_fleet(batches.queue) if batches.settings.check_models else None
    reader = batches.reader(record)
    checker = Checker(record, reader, batches.settings.allowed_media_domains, fleet)
    rows = Rows(batches.storage, record.id)
    errors: list[BatchError] = []
    skipped = array("Q")
    with batches.storage.open(path) as stream:
        lines = lines_of(stream, reader.max_line_bytes)
        while (found := await lease.hold(partial(checker.check_some, lines))) is not None:
            for bad in found:
                _note(bad, record, errors, rows, skipped)
            if rows.num_bytes > MAX_BYTES:
                await lease.hold(rows.flush)
            if checker.num_lines > batches.settings.max_batch_requests:
                break
            if await batches.registry.is_cancelled(record.id):
                await batches.end_early(lease, state)
                return
            await lease.extend()
    if failure := _failure(checker, record, errors, batches.settings.max_batch_requests):
        await batches.end_early(lease, state, failure)
        return
    await _begin(batches, lease, state, checker=checker, rows=rows, skipped=skipped)


async def _begin(
    batches: Batches,
    lease: BatchLease,
    state: BatchState,
    *,
    checker: Checker,
    rows: Rows,
    skipped: "array[int]",
) -> None:
    path = ""
    if skipped:
        path = batches.storage.new_path(folder_of(state.record.id), "skipped")
        await lease.hold(partial(batches.storage.write, path, skipped.tobytes()))
    await lease.hold(rows.flush)
    parts = rows.take()
    counts = {"total": checker.num_lines, "failed": len(skipped)}
    record = state.record.model_copy(
        update={
            "status": "in_progress",
            "in_progress_at": int(time.time()),
            "model": checker.model or None,
            "request_counts": state.record.request_counts.model_copy(update=counts),
        }
    )
    progress = replace(state.progress, skipped=path, has_parts=bool(parts))
    await batches.commit(lease, state, record, progress, parts=parts)


def _note(
    bad: BadLine,
    record: BatchRecord,
    errors: list[BatchError],
    rows: Rows,
    skipped: "array[int]",
) -> None:
    if len(errors) < MAX_ERRORS:
        errors.append(
            BatchError(code=bad.code, message=str(bad)[:MAX_MESSAGE_CHARS], line=bad.number)
        )
    if record.mode == "lenient":
        rows.add("error", bad_line_row(record.id, bad))
        skipped.append(bad.number)


def _failure(
    checker: Checker, record: BatchRecord, errors: list[BatchError], max_requests: int
) -> BatchErrors | None:
    """Return why the whole file is refused, or None."""
    if checker.num_lines == 0:
        message = "the file has no requests; write one JSON object a line"
        return BatchErrors(data=(BatchError(code="empty_file", message=message),))
    if checker.num_lines > max_requests:
        message = (
            f"the file has more than {max_requests:,} lines, the limit of one batch"
            " (GRISTMILL_MAX_BATCH_REQUESTS); split it"
        )
        return BatchErrors(
            data=(
                BatchError(code="too_many_requests", message=message, line=max_requests + 1),
                *errors,
            )
        )
    if record.mode == "lenient" or not errors:
        return None
    if more := checker.num_bad - len(errors):
        message = f"and {more:,} more lines; mend them, or create the batch as lenient"
        errors.append(BatchError(code="more_errors", message=message))
    return BatchErrors(data=tuple(errors))
