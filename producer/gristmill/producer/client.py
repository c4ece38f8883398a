"""The producer's client: submit requests, wait for results.

One `Client` a process is enough: it holds a connection pool and one task that waits for everything.
`sync.py` is its twin for code without an event loop.
"""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from types import TracebackType
from typing import Any, Self

from ulid import ULID

from gristmill.producer.stream import Item, Stream, chunks
from gristmill.producer.waiter import Waiter, result_expired
from gristmill.shared.connection import connect
from gristmill.shared.errors import IdConflict, InvalidRequest, QueueFull
from gristmill.shared.fleet import FleetCache
from gristmill.shared.operations import IDS_A_CALL, State, SubmitCode
from gristmill.shared.queue import Queue
from gristmill.shared.redis_retry import retrying
from gristmill.shared.request import Request
from gristmill.shared.results import Result
from gristmill.shared.settings import QueueSettings

MAX_CHUNK_BYTES = 8 * 2**20
FULL_WAIT_MIN_S = 0.05
FULL_WAIT_MAX_S = 2.0
WINDOW = 4096


class Client:
    """Submit requests and wait for their results.

    Args:
        queue: Which queue.
        max_request_bytes: Longest body that is accepted.
        check_models: Whether to refuse what no live worker of the queue serves.
        name: Names the reply list; unique to this client.

    Attributes:
        queue: Which queue.
        name: Of the client.

    A request is done when its result is written; how it ended is the result's `status`. Nothing
    here is lost when Redis is away: calls wait until it is back.
    """

    def __init__(
        self,
        queue: Queue,
        *,
        max_request_bytes: int = 32 * 2**20,
        check_models: bool = True,
        name: str | None = None,
    ) -> None:
        self.queue = queue
        self._lookout = FleetCache(queue) if check_models else None
        self._max_request_bytes = max_request_bytes
        self.name = name or f"client-{ULID()}"
        self._waiter = Waiter(queue, self.name)

    @classmethod
    def from_settings(cls, settings: QueueSettings) -> Self:
        """Return a client for what the environment says."""
        redis = connect(settings.redis_url.get_secret_value(), settings.socket_timeout_s)
        queue = Queue(redis, settings.queue, settings.limits)
        return cls(
            queue,
            max_request_bytes=settings.max_request_bytes,
            check_models=settings.check_models,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop waiting and close the connections. What was submitted runs on."""
        await self._waiter.aclose()
        await self.queue.redis.aclose()

    async def submit(
        self, request: Request | Mapping[str, Any], *, wait: bool = True, **fields: Any
    ) -> str:
        """Submit one request.

        Args:
            request: A request, or the body of one.
            wait: Whether to wait while the queue is full.
            **fields: Fields of `Request`, if a body was given.

        Returns:
            Its id. Submitting the same request under the same id again changes nothing.

        Raises:
            InvalidRequest: It breaks a rule.
            NotServed: The queue has workers, and none serves its model or endpoint.
            IdConflict: Its id belongs to another request.
            QueueFull: The queue is at its cap and `wait` is false.
        """
        made = request if isinstance(request, Request) else Request.from_body(request, **fields)
        await self._submit([made], wait=wait)
        return made.id

    async def submit_many(self, requests: Iterable[Request] | AsyncIterable[Request]) -> list[str]:
        """Submit requests in bulk, waiting while the queue is full; returns their ids in order.

        Raises:
            InvalidRequest, NotServed, IdConflict: As `submit`; requests before the bad one are in the queue.
        """
        ids: list[str] = []
        async for chunk in chunks(requests, 128):
            await self._submit(chunk)
            ids.extend(request.id for request in chunk)
        return ids

    async def result(self, request_id: str) -> Result | None:
        """Return a result, or None while the request is not finished.

        Raises:
            ResultExpired: The queue does not know the id.
        """
        result = (await retrying(lambda: self.queue.results([request_id])))[0]
        if result is None and (await self.status([request_id]))[0][0] == "unknown":
            raise result_expired(request_id)
        return result

    async def wait(self, request_id: str, timeout_s: float | None = None) -> Result:
        """Wait for a result.

        Raises:
            TimeoutError: It is not there after `timeout_s`; the request runs on.
            ResultExpired: The queue does not know the id.
        """
        future = self._waiter.expect(request_id, is_own=False)
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(future)
        finally:
            self._waiter.forget(request_id, future)

    def as_completed(
        self, items: Iterable[Item] | AsyncIterable[Item], *, window: int = WINDOW
    ) -> AsyncIterator[Result]:
        """Yield results as they finish.

        Args:
            items: Requests, submitted as the window allows, or ids that were submitted before.
            window: How many may be unfinished at a time: what bounds Redis and this process.

        Raises:
            InvalidRequest, IdConflict, ResultExpired: At the item that is at fault.
        """
        return Stream(items, window, self._start).as_completed()

    def map(
        self, items: Iterable[Item] | AsyncIterable[Item], *, window: int = WINDOW
    ) -> AsyncIterator[Result]:
        """Yield results in the order of the items; otherwise as `as_completed`."""
        return Stream(items, window, self._start).in_order()

    async def cancel(self, ids: Sequence[str]) -> list[str]:
        """Cancel requests; a code for each: queued or running (cancelled now), done, unknown."""
        chunks = _chunks(ids)
        codes = [await retrying(partial(self.queue.cancel, chunk)) for chunk in chunks]
        return list(chain.from_iterable(codes))

    async def status(self, ids: Sequence[str]) -> list[tuple[State, str]]:
        """Return the state of each request and the worker that runs it, or ""."""
        chunks = _chunks(ids)
        states = [await retrying(partial(self.queue.status, chunk)) for chunk in chunks]
        return list(chain.from_iterable(states))

    async def _start(self, items: list[Item]) -> "list[asyncio.Future[Result]]":
        requests = [item for item in items if isinstance(item, Request)]
        codes = iter(await self._submit(requests)) if requests else iter(())
        return [
            self._waiter.expect(item.id, is_own=next(codes) == "accepted")
            if isinstance(item, Request)
            else self._waiter.expect(item, is_own=False)
            for item in items
        ]

    async def _submit(self, requests: Sequence[Request], *, wait: bool = True) -> list[SubmitCode]:
        """Submit a chunk; while the queue is full, ever smaller parts of it."""
        self._check_sizes(requests)
        if self._lookout:
            await self._lookout.check(requests)
        own = [replace(request, reply=self.name) for request in requests]
        if sum(request.num_bytes for request in own) > MAX_CHUNK_BYTES and len(own) > 1:
            return await self._submit_halves(requests, wait=wait)
        pause_s = FULL_WAIT_MIN_S
        while True:
            try:
                codes = await retrying(lambda: self.queue.submit(own))
            except QueueFull:
                if not wait:
                    raise
                if len(own) > 1:
                    return await self._submit_halves(requests, wait=wait)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, FULL_WAIT_MAX_S)
            else:
                _raise_conflicts(requests, codes)
                return codes

    async def _submit_halves(self, requests: Sequence[Request], *, wait: bool) -> list[SubmitCode]:
        middle = len(requests) // 2
        first = await self._submit(requests[:middle], wait=wait)
        return first + await self._submit(requests[middle:], wait=wait)

    def _check_sizes(self, requests: Sequence[Request]) -> None:
        for request in requests:
            _check_size(
                request,
                "its body has",
                len(request.body),
                self._max_request_bytes,
                "MAX_REQUEST_BYTES",
            )
            _check_size(
                request,
                "body and metadata have",
                request.num_bytes,
                self.queue.limits.max_bytes,
                "MAX_BYTES",
            )


def _check_size(request: Request, what: str, num_bytes: int, limit: int, setting: str) -> None:
    if num_bytes > limit:
        raise InvalidRequest(
            f"{what} {num_bytes:,} bytes; the limit is {limit:,} (GRISTMILL_{setting}); shorten it,"
            " or raise the limit here and on the workers",
            request_id=request.id,
        )


def _chunks(ids: Sequence[str]) -> list[Sequence[str]]:
    """Split ids into calls that stay short."""
    if isinstance(ids, str):
        raise InvalidRequest(f"ids is the string {ids[:80]!r}; give a list of ids")
    return [ids[start : start + IDS_A_CALL] for start in range(0, len(ids), IDS_A_CALL)]


def _raise_conflicts(requests: Sequence[Request], codes: Sequence[SubmitCode]) -> None:
    for request, code in zip(requests, codes, strict=True):
        if code == "conflict":
            raise IdConflict(
                "the id belongs to another request (another body or endpoint); use a new id, or wait"
                " until its result's TTL has ended",
                request_id=request.id,
            )
