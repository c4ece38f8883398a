"""Submit chunks of requests: check them, wait while the queue is full, split what is too large for one call."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from gristmill.producer.submit_spans import submit_spans
from gristmill.shared.errors import (
    IdConflict,
    InvalidRequest,
    NotServed,
    QueueFull,
    TooLargeForRedis,
)
from gristmill.shared.fleet_cache import FleetCache
from gristmill.shared.operations import SubmitCode
from gristmill.shared.queue import Queue
from gristmill.shared.redis_full import RedisFull
from gristmill.shared.redis_retry import MAX_BREAKS, retrying_sized
from gristmill.shared.redis_trouble import remedy, trouble
from gristmill.shared.request import Request

MAX_CHUNK_BYTES = 8 * 2**20
"""Bytes of one call; more would hold up the other clients of Redis."""

FULL_WAIT_MIN_S = 0.05
FULL_WAIT_MAX_S = 2.0
"""First and longest pause before the next try of a full queue."""


class Submitter:
    """Submits requests in the name of one client.

    Args:
        queue: The queue that takes the requests.
        client: Name of the reply list, which will name each request as it finishes.
        max_request_bytes: Longest body that is accepted.
        check_models: True refuses a request that no live worker of the queue serves.
    """

    def __init__(
        self, queue: Queue, client: str, *, max_request_bytes: int, check_models: bool
    ) -> None:
        self._queue = queue
        self._client = client
        self._max_request_bytes = max_request_bytes
        self._fleet = FleetCache(queue) if check_models else None

    async def submit(
        self, requests: Sequence[Request], *, wait_if_full: bool = True
    ) -> tuple[list[SubmitCode], InvalidRequest | None]:
        """Submit a chunk up to its first bad request; while the queue is full, ever smaller parts of it.

        Returns:
            A code for each request before the bad one: accepted, queued, done. Then its error, or None:
            InvalidRequest if it is too large, also for this Redis, NotServed if no worker serves it, IdConflict if its id belongs
            to another request. Requests after an IdConflict may be submitted too.

        Raises:
            QueueFull: The queue is at its cap, or Redis is full, and `wait_if_full` is false.
        """
        good, error = await self._before_bad(requests)
        own = [replace(request, reply=self._client) for request in good]
        codes: list[SubmitCode] = []
        if own:
            with submit_spans(own, self._queue.keys.queue) as traced:
                codes, refusal = await self._submit(traced, wait_if_full=wait_if_full)
            error = refusal or error
        if "conflict" in codes:
            index = codes.index("conflict")
            return codes[:index], _conflict(good[index])
        return codes, error

    async def _before_bad(
        self, requests: Sequence[Request]
    ) -> tuple[Sequence[Request], InvalidRequest | None]:
        """Return the requests before the first that is refused, and its error."""
        error: InvalidRequest | None = None
        for index, request in enumerate(requests):
            if error := self._size_error(request):
                requests = requests[:index]
                break
        if self._fleet and requests:
            try:
                await self._fleet.check(requests)
            except NotServed as refusal:
                ids = [request.id for request in requests]
                return requests[: ids.index(str(refusal.request_id))], refusal
        return requests, error

    async def _submit(
        self, own: Sequence[Request], *, wait_if_full: bool
    ) -> tuple[list[SubmitCode], InvalidRequest | None]:
        """Submit requests up to one that Redis refuses for its size; return their codes and its error."""
        num_bytes = sum(request.num_bytes for request in own)
        if num_bytes > MAX_CHUNK_BYTES and len(own) > 1:
            return await self._submit_halves(own, wait_if_full=wait_if_full)
        pause_s = FULL_WAIT_MIN_S
        while True:
            try:
                call = partial(self._try, own, wait_if_full=wait_if_full)
                max_breaks = MAX_BREAKS if len(own) == 1 else 1  # halves are tried again
                answering = self._queue.is_answering
                return await retrying_sized(call, num_bytes, answering, max_breaks), None
            except TooLargeForRedis as refusal:
                if len(own) == 1:
                    return [], InvalidRequest(str(refusal), request_id=own[0].id)
            except QueueFull:
                if not wait_if_full:
                    raise
            if len(own) > 1:
                return await self._submit_halves(own, wait_if_full=wait_if_full)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, FULL_WAIT_MAX_S)

    async def _try(self, own: Sequence[Request], *, wait_if_full: bool) -> list[SubmitCode]:
        try:
            return await self._queue.submit(own)
        except RedisFull as full:
            if wait_if_full:
                raise
            counters = (await self._queue.stats()).counters
            depth = counters.get("queued", 0) + counters.get("in_flight", 0)
            message = f"Redis {trouble(full)}; {remedy(full)}"
            raise QueueFull(message, depth, counters.get("bytes", 0)) from full

    async def _submit_halves(
        self, own: Sequence[Request], *, wait_if_full: bool
    ) -> tuple[list[SubmitCode], InvalidRequest | None]:
        middle = len(own) // 2
        codes, error = await self._submit(own[:middle], wait_if_full=wait_if_full)
        if error:
            return codes, error
        others, error = await self._submit(own[middle:], wait_if_full=wait_if_full)
        return codes + others, error

    def _size_error(self, request: Request) -> InvalidRequest | None:
        """Return the error for a request that is too large, or None."""
        sizes = (
            ("its body has", len(request.body), self._max_request_bytes, "MAX_REQUEST_BYTES"),
            (
                "body and metadata have",
                request.num_bytes,
                self._queue.limits.max_bytes,
                "MAX_BYTES",
            ),
        )
        for what, num_bytes, limit, setting in sizes:
            if num_bytes > limit:
                return InvalidRequest(
                    f"{what} {num_bytes:,} bytes; the limit is {limit:,} (GRISTMILL_{setting}); shorten it,"
                    " or raise the limit here and on the workers",
                    request_id=request.id,
                )
        return None


def _conflict(request: Request) -> IdConflict:
    return IdConflict(
        "the id belongs to another request (another body or endpoint); use a new id, or wait until its"
        " result's TTL has ended",
        request_id=request.id,
    )
