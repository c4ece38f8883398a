"""The rules that each line of a batch must keep."""

from collections.abc import Iterator

from gristmill.producer.batches.objects import BatchRecord
from gristmill.producer.batches.rows import (
    BadLine,
    CustomIds,
    Line,
    LineReader,
    bad_request,
    custom_id_of,
    duplicate_line,
    take_lines,
)
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.fleet import Fleet
from gristmill.shared.media import check_media
from gristmill.shared.request import Request

LINES_A_STEP = 5_000


class LineValidator:
    """Checks the lines of one file in their order.

    Args:
        batch: Batch of the lines. In a strict one all lines must name the same model, as with OpenAI.
        reader: Reader that turns lines into requests.
        media_domains: Hosts from which any URL may be fetched.
        fleet: Models and endpoints of the workers; None to skip this check.

    Attributes:
        model: Model of the first good line; None before it.
        num_lines: Lines that were checked.
        num_bad: Bad lines among them.
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
        self._custom_ids = CustomIds()
        self.model: str | None = None
        self.num_lines = 0
        self.num_bad = 0

    def check_next(self, lines: Iterator[Line]) -> list[BadLine] | None:
        """Check the next lines and return the bad ones; None at the end. Blocks on the storage."""
        taken = take_lines(lines, LINES_A_STEP)
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
        """Return the error of a request that may not run in this batch, else None."""
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
        if self._fleet and (refusal := self._fleet.refusal(request)):
            return bad_request(number, request, refusal.reason, refusal.code)
        if (request.tenant, request.batch) != (self._batch.tenant, self._batch.id):
            reason = "it names a tenant or a batch, but runs for the batch's tenant; leave both out"
            return bad_request(number, request, reason)
        return None

    def _unlike_others(self, number: int, request: Request) -> BadLine | None:
        """Return the error of a request that does not fit the earlier lines, else None."""
        first = self._custom_ids.add(custom_id_of(request), number)
        if first is not None:
            return duplicate_line(number, request, first)
        if self.model is None:
            self.model = request.model
        if self._batch.mode == "strict" and request.model != self.model:
            reason = (
                f"its model is {request.model!r}, but earlier lines have {self.model!r};"
                " create one batch per model, or a lenient batch"
            )
            return bad_request(number, request, reason, "model_mismatch")
        return None
