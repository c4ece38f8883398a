"""The rules that each line of a batch must keep."""

import time
from array import array
from collections.abc import Iterator

from gristmill.producer.batches.batch_state import Validated
from gristmill.producer.batches.lifecycle.line_queues import LineQueues
from gristmill.producer.batches.objects import BatchError, BatchRecord
from gristmill.producer.batches.rows import (
    BadLine,
    CustomIds,
    Line,
    LineReader,
    bad_request,
    custom_id_of,
    duplicate_line,
    unknown_fields_of,
)
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.media import check_media
from gristmill.shared.request import Request

MAX_DESCRIBED = 100
"""Bad lines of a file after which errors of bodies have no details."""

MAX_KEPT = 100
"""Errors of a file that its batch keeps, and warnings; the others are counted."""

MAX_MESSAGE_CHARS = 1_000

STEP_S = 0.25
"""Seconds of one step; after each, the steward renews its lease, and others may have their turn."""


class LineValidator:
    """Checks the lines of one file in their order.

    Args:
        batch: Batch of the lines. If it is strict and has one queue, all lines must name the same model, as with OpenAI.
        reader: Reader that turns lines into requests.
        media_domains: Hosts from which any URL may be fetched.
        queues: Queues to which the lines may go.
        before: How far the file was checked before.
        custom_ids: Custom_ids of the lines that were checked before.

    Attributes:
        model: Model of the first good line; None before it.
        num_lines: Lines that were checked.
        num_bad: Bad lines among them.
        offset: Byte at which the next line begins.
        custom_ids: Custom_ids of these lines.
        warnings: What the first `MAX_KEPT` of the good lines have that the engine ignores.
        num_warned: Good lines with such fields.
        taken_by: Number of the queue that takes each line of this slice; 0 for a bad line. Empty if there is one queue.
    """

    def __init__(
        self,
        batch: BatchRecord,
        reader: LineReader,
        media_domains: frozenset[str],
        queues: LineQueues,
        *,
        before: Validated,
        custom_ids: CustomIds,
    ) -> None:
        self._batch = batch
        self._queues = queues
        self._media_domains = media_domains
        self._reader = reader
        self.model = before.model
        self.num_lines = before.line
        self.num_bad = before.num_bad
        self.offset = before.offset
        self.custom_ids = custom_ids
        self.warnings = [BatchError(**fields) for fields in before.warnings]
        self.num_warned = before.num_warned
        self.taken_by = array("H")

    def check_next(self, lines: Iterator[Line]) -> list[BadLine] | None:
        """Check lines for `STEP_S` and return the bad ones; None at the end. Blocks on the storage."""
        end_s = time.monotonic() + STEP_S
        num_before = self.num_lines
        found = []
        for line in lines:
            if bad := self._check(line):
                found.append(bad)
            if time.monotonic() > end_s:
                break
        return found if self.num_lines > num_before else None

    def _check(self, line: Line) -> BadLine | None:
        self.num_lines, self.offset = line.number, line.end
        entry = self._reader.read(line)
        queue = 0
        if isinstance(entry, BadLine):
            bad: BadLine | None = entry
        else:
            queue = self._queues.number_for(entry)
            bad = self._misfit(line.number, entry, queue) or self._unlike_others(line.number, entry)
            if bad is None and entry.unknown_fields:
                self._warn(line.number, entry)
        self.num_bad += bad is not None
        if not self._queues.is_single:
            self.taken_by.append(0 if bad else queue)
        return bad

    def _warn(self, number: int, request: Request) -> None:
        self.num_warned += 1
        if len(self.warnings) < MAX_KEPT:
            self.warnings.append(described(unknown_fields_of(number, request)))

    def _misfit(self, number: int, request: Request, queue: int) -> BadLine | None:
        """Return the error of a request that may not run in this batch, or in its queue, else None."""
        try:
            check_media(request, self._media_domains, look_up=False)
        except InvalidRequest as error:
            return bad_request(number, request, error.reason, "invalid_media_url")
        if request.endpoint != self._batch.endpoint:
            reason = (
                f"its url is {request.endpoint}, the batch's is {self._batch.endpoint};"
                " create one batch per url"
            )
            return bad_request(number, request, reason, "url_mismatch")
        if refusal := self._queues.refusal(request, queue):
            return bad_request(number, request, refusal.reason, refusal.code)
        if (request.tenant, request.batch) != (self._batch.tenant, self._batch.id):
            reason = "it names a tenant or a batch, but runs for the batch's tenant; leave both out"
            return bad_request(number, request, reason)
        return self._wrong_body(number, request, queue)

    def _wrong_body(self, number: int, request: Request, queue: int) -> BadLine | None:
        """Return the error of a body that does not fit the schema of its endpoint, else None."""
        check = self._queues.body_check(queue)
        if check is None:
            return None
        problem = check.problem(request, is_described=self.num_bad < MAX_DESCRIBED)
        return None if problem is None else bad_request(number, request, problem, "invalid_body")

    def _unlike_others(self, number: int, request: Request) -> BadLine | None:
        """Return the error of a request that does not fit the earlier lines, else None."""
        first = self.custom_ids.add(custom_id_of(request), number)
        if first is not None:
            return duplicate_line(number, request, first)
        if self.model is None:
            self.model = request.model
        has_one_model = self._batch.mode == "strict" and self._queues.is_single
        if has_one_model and request.model != self.model:
            reason = (
                f"its model is {request.model!r}, but earlier lines have {self.model!r};"
                " create one batch per model, or a lenient batch"
            )
            return bad_request(number, request, reason, "model_mismatch")
        return None


def described(line: BadLine) -> BatchError:
    """Return what is wrong with a line, as the batch keeps it."""
    return BatchError(code=line.code, message=str(line)[:MAX_MESSAGE_CHARS], line=line.number)
