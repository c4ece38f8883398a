"""Submit chunks of requests: check them, wait while the queue is full, split what is too large for one call."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from gristmill.shared.errors import IdConflict, InvalidRequest, QueueFull
from gristmill.shared.fleet import FleetCache
from gristmill.shared.operations import SubmitCode
from gristmill.shared.queue import Queue
from gristmill.shared.redis_retry import retrying
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
    ) -> list[SubmitCode]:
        """Submit a chunk; while the queue is full, ever smaller parts of it.

        Returns:
            A code for each request: accepted, queued, done.

        Raises:
            InvalidRequest: A request is too large, or no worker serves it; the chunk was not submitted.
            IdConflict: The id of one belongs to another request; the others were submitted.
            QueueFull: The queue is at its cap, and `wait_if_full` is false.
        """
        self._check_sizes(requests)
        if self._fleet:
            await self._fleet.check(requests)
        own = [replace(request, reply=self._client) for request in requests]
        codes = await self._submit(own, wait_if_full=wait_if_full)
        _raise_conflicts(requests, codes)
        return codes

    async def _submit(self, own: Sequence[Request], *, wait_if_full: bool) -> list[SubmitCode]:
        if sum(request.num_bytes for request in own) > MAX_CHUNK_BYTES and len(own) > 1:
            return await self._submit_halves(own, wait_if_full=wait_if_full)
        pause_s = FULL_WAIT_MIN_S
        while True:
            try:
                return await retrying(lambda: self._queue.submit(own))
            except QueueFull:
                if not wait_if_full:
                    raise
            if len(own) > 1:
                return await self._submit_halves(own, wait_if_full=True)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, FULL_WAIT_MAX_S)

    async def _submit_halves(
        self, own: Sequence[Request], *, wait_if_full: bool
    ) -> list[SubmitCode]:
        middle = len(own) // 2
        first = await self._submit(own[:middle], wait_if_full=wait_if_full)
        return first + await self._submit(own[middle:], wait_if_full=wait_if_full)

    def _check_sizes(self, requests: Sequence[Request]) -> None:
        max_bytes = self._queue.limits.max_bytes
        for request in requests:
            num_bytes = len(request.body)
            _check_size(
                request, "its body has", num_bytes, self._max_request_bytes, "MAX_REQUEST_BYTES"
            )
            _check_size(
                request, "body and metadata have", request.num_bytes, max_bytes, "MAX_BYTES"
            )


def _check_size(request: Request, what: str, num_bytes: int, limit: int, setting: str) -> None:
    if num_bytes > limit:
        raise InvalidRequest(
            f"{what} {num_bytes:,} bytes; the limit is {limit:,} (GRISTMILL_{setting}); shorten it,"
            " or raise the limit here and on the workers",
            request_id=request.id,
        )


def _raise_conflicts(requests: Sequence[Request], codes: Sequence[SubmitCode]) -> None:
    for request, code in zip(requests, codes, strict=True):
        if code == "conflict":
            raise IdConflict(
                "the id belongs to another request (another body or endpoint); use a new id, or wait"
                " until its result's TTL has ended",
                request_id=request.id,
            )
