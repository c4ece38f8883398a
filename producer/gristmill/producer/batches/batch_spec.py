"""The specification of a new batch, and the rules that it must keep."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gristmill.producer.batches.objects import BatchRecord, Mode, Order, UnknownFields
from gristmill.producer.highest_lane import check_priority
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.request import ENDPOINTS, Priority

MAX_WINDOW_S = 365 * 24 * 3600

_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600}
_WINDOW = re.compile(r"([1-9]\d{0,8})([smhd])")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSpec:
    """The batch that a client wants.

    Attributes:
        input_file_id: Id of the input, a file of the same tenant.
        endpoint: Endpoint that every line asks for, such as /v1/chat/completions.
        completion_window: A whole number and s, m, h or d; lines that are unfinished then expire.
        metadata: Names and values that come back with the batch.
        output_expires_after_s: Seconds from the batch's end after which its files are deleted.
        mode: strict: a bad line fails the file; lenient: a bad line gets an error row, the rest runs.
        order: Order of the rows in the output file.
        unknown_fields: report: a body's field that the engine ignores is a warning; refuse: its line is bad.
        priority: Lane of requests that set no priority.
        max_priority: Highest lane that its lines may ask for.
        retry_of: Id of the batch whose failed lines this one repeats.
    """

    input_file_id: str
    endpoint: str
    completion_window: str = "24h"
    metadata: Mapping[str, str] | None = None
    output_expires_after_s: int | None = None
    mode: Mode = "strict"
    order: Order = "completion"
    unknown_fields: UnknownFields = "report"
    priority: Priority = "normal"
    max_priority: Priority = "high"
    retry_of: str | None = None

    def record(self, batch_id: str, tenant: str, now: int) -> BatchRecord:
        """Return the record of a new batch.

        Args:
            batch_id: Id of the batch.
            tenant: Owner of the batch; its requests use this tenant's share of the engine.
            now: Time of the creation, in seconds since 1970.

        Raises:
            InvalidRequest: A field breaks a rule; the message names the field.
        """
        check_endpoint(self.endpoint)
        check_priority(self.priority, self.max_priority, tenant)
        return BatchRecord(
            id=batch_id, tenant=tenant, created_at=now, expires_at=now + window_s(self.completion_window),
            input_file_id=self.input_file_id, endpoint=self.endpoint, completion_window=self.completion_window,
            metadata=dict(self.metadata) if self.metadata is not None else None,
            output_expires_after_s=self.output_expires_after_s, mode=self.mode, order=self.order,
            unknown_fields=self.unknown_fields,
            priority=self.priority, max_priority=self.max_priority, retry_of=self.retry_of,
        )  # fmt: skip


def check_endpoint(endpoint: str) -> None:
    """Refuse an endpoint that no batch may ask for.

    Raises:
        InvalidRequest: The endpoint is unknown.
    """
    if endpoint not in ENDPOINTS:
        raise InvalidRequest(f"endpoint {endpoint!r} is unknown; use {', '.join(ENDPOINTS)}")


def window_s(text: str) -> int:
    """Return the seconds of a completion window such as `24h`.

    Raises:
        InvalidRequest: The text has another form, or the window is longer than a year.
    """
    found = _WINDOW.fullmatch(text)
    seconds = int(found[1]) * _UNIT_S[found[2]] if found else 0
    if not 0 < seconds <= MAX_WINDOW_S:
        raise InvalidRequest(
            f"completion_window {text[:40]!r} is not allowed; write a whole number and s, m, h or d, such as 24h,"
            " up to 365d"
        )
    return seconds
