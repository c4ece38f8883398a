"""The bodies of calls: read within bounds; the one of a single request also parsed, and its media URLs checked."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from weakref import WeakValueDictionary

from fastapi import Request

from gristmill.producer.gateway.body_pool import SMALL_BODY_BYTES, BodyShare
from gristmill.producer.gateway.http_errors import RETRY_AFTER_S, ApiError, too_large
from gristmill.producer.highest_lane import check_priority, lower_of
from gristmill.producer.tenants import Tenant
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.media import check_media
from gristmill.shared.request import Request as QueuedRequest
from gristmill.shared.request_json import request_from_json

MAX_BODY_S = 60.0
"""Longest time to read one body, and longest pause in an upload, because a stalled body keeps its share of the
memory."""

NUM_DNS_THREADS, LOOKUPS_A_TENANT = 8, 2
"""Lookups at a time, and those of one tenant. The DNS servers of a tenant's hosts may never answer, and a lookup cannot
be stopped, so no tenant may have all threads."""

MAX_DNS_WAIT_S = 10.0
"""Longest wait for the hosts of one request's media URLs."""


async def read_body(request: Request, share: BodyShare, max_bytes: int, setting: str = "") -> bytes:
    """Return the body of a call, without reading one whose declared length is over a limit.

    Args:
        request: The HTTP call.
        share: The memory of the call; it then holds the length of the body.
        max_bytes: Most bytes of the body.
        setting: The operator's setting of that limit, if there is one.

    Raises:
        ApiError: 408 after `MAX_BODY_S`; 413 for a body over its limit; 429 or 503 if the memory for bodies is taken.
    """
    num_bytes = declared_bytes(request)
    if num_bytes > max_bytes:
        raise too_large("the body", max_bytes, setting)
    share.resize(num_bytes)
    try:
        async with asyncio.timeout(MAX_BODY_S):
            return await _read(request, share, num_bytes, max_bytes, setting)
    except TimeoutError:
        message = f"the body did not come within {MAX_BODY_S:g} s; send it faster, or a smaller one"
        raise ApiError(408, message, code="body_timeout") from None


def declared_bytes(request: Request) -> int:
    """Return the Content-Length of a call; 0 if its body comes in chunks."""
    return int(request.headers.get("content-length", 0))


async def _read(
    request: Request, share: BodyShare, declared: int, max_bytes: int, setting: str
) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise too_large("the body", max_bytes, setting)
        if len(body) > declared:
            share.resize(len(body))
    return bytes(body)


async def unstalled(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the chunks of a long body, such as a file's.

    Raises:
        ApiError: 408: no chunk came for `MAX_BODY_S`.
    """
    while True:
        try:
            async with asyncio.timeout(MAX_BODY_S):
                chunk = await anext(chunks)
        except StopAsyncIteration:
            return
        except TimeoutError:
            message = f"the body stalled for {MAX_BODY_S:g} s; send it again"
            raise ApiError(408, message, code="body_timeout") from None
        yield chunk


async def parsed(
    parse: Callable[[], QueuedRequest], num_bytes: int, parsing: asyncio.Lock
) -> QueuedRequest:
    """Return the request of a body. A large one is parsed in a thread, one at a time, so that other calls go on.

    Args:
        parse: Parses the body.
        num_bytes: Length of the body.
        parsing: Held while a large body is parsed.
    """
    if num_bytes <= SMALL_BODY_BYTES:
        return parse()
    async with parsing:
        return await asyncio.to_thread(parse)


def queued_request(
    body: bytes,
    *,
    tenant: Tenant,
    key: str | None,
    call_id: str,
    new_id: str,
    max_request_bytes: int,
) -> QueuedRequest:
    """Return the request of a body. Its tenant is the caller, even if the body names another.

    Args:
        body: A request in JSON.
        tenant: The calling tenant.
        key: The Idempotency-Key, which becomes part of the request's id.
        call_id: The X-Request-Id of the call, which becomes part of the metadata.
        new_id: Id of a request without an id and a key.
        max_request_bytes: Largest request that the queue takes.

    Raises:
        InvalidRequest: The body breaks a rule.
    """
    default_id = key or new_id
    defaults = {"priority": lower_of("normal", tenant.max_priority)}
    request = request_from_json(
        body, max_request_bytes=max_request_bytes, default_id=default_id, defaults=defaults
    )
    check_priority(request.priority, tenant.max_priority, tenant.name)
    if key is not None and request.id != key:
        raise InvalidRequest("the body has an id and the call an Idempotency-Key; send one of them")
    if request.batch:
        raise InvalidRequest("'batch' is not accepted here; POST /v1/batches makes batches")
    return replace(
        request,
        id=f"{tenant.name}.{request.id}",
        tenant=tenant.name,
        metadata={**(request.metadata or {}), "request_id": call_id},
    )


class MediaGuard:
    """Refuses requests whose media URLs lead into a private network.

    Args:
        allowed: Hosts that any request may name.
    """

    def __init__(self, allowed: frozenset[str]) -> None:
        self._allowed = allowed
        # Separate threads, so that a slow DNS does not delay the storage.
        self._threads = ThreadPoolExecutor(NUM_DNS_THREADS, thread_name_prefix="gristmill-dns")
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def check(self, request: QueuedRequest) -> None:
        """Check the media URLs of one request.

        Raises:
            InvalidRequest: A URL is not allowed.
            ApiError: 503: the DNS did not answer, or the tenant's other lookups did not end, within `MAX_DNS_WAIT_S`.
        """
        turns = self._turns.setdefault(request.tenant, asyncio.Semaphore(LOOKUPS_A_TENANT))
        try:
            async with asyncio.timeout(MAX_DNS_WAIT_S):
                await self._look_up(request, turns)
        except TimeoutError:
            raise ApiError(
                503,
                f"request {request.id}: the hosts of its media URLs could not be looked up within {MAX_DNS_WAIT_S:g} s"
                f" ({LOOKUPS_A_TENANT} lookups of a tenant at a time); send the data itself as data: URLs, or call again",
                code="lookup_timeout",
                headers={"Retry-After": str(RETRY_AFTER_S)},
            ) from None

    async def _look_up(self, request: QueuedRequest, turns: asyncio.Semaphore) -> None:
        """Check a request in a thread. Its turn ends with the thread, even if the call has given up by then."""
        await turns.acquire()
        loop = asyncio.get_running_loop()
        looking = loop.run_in_executor(self._threads, partial(check_media, request, self._allowed))

        def end_turn(ended: "asyncio.Future[None]") -> None:
            turns.release()
            if not ended.cancelled():
                ended.exception()  # a call that has given up does not read it

        looking.add_done_callback(end_turn)
        await asyncio.shield(looking)

    def close(self) -> None:
        """Cancel the lookups that have not begun."""
        self._threads.shutdown(wait=False, cancel_futures=True)


BODY_SCHEMA: Mapping[str, object] = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "description": "An OpenAI body, or an envelope around one: body, endpoint, priority, deadline_s, ...",
                "properties": {
                    "endpoint": {"type": "string"},
                    "body": {"type": "object"},
                    "priority": {"type": "string", "enum": ["high", "normal", "low"]},
                    "messages": {"type": "array", "items": {"type": "object"}},
                    "prompt": {"type": "string"},
                    "max_tokens": {"type": "integer", "minimum": 1},
                },
            },
            "examples": {
                "plain": {"value": {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 9}},
                "envelope": {
                    "value": {"endpoint": "/v1/completions", "body": {"prompt": "Hello"}, "priority": "low"}
                },
            },
        }
    },
}  # fmt: skip
"""The body's schema for the OpenAPI page. FastAPI does not know it, because `read_body` reads the
body."""
