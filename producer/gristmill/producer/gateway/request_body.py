"""The body of a single request: read within bounds, parsed, and its media URLs checked."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from fastapi import Request
from ulid import ULID

from gristmill.producer.gateway.http_errors import RETRY_AFTER_S, ApiError, too_large
from gristmill.producer.tenants import Tenant
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.media import check_media
from gristmill.shared.request import Request as QueuedRequest
from gristmill.shared.request_json import max_element_bytes, request_from_json

MAX_BODIES_BYTES = 128 * 2**20
"""Most bytes in memory for all bodies that the gateway reads at the same time."""

MAX_BODY_S = 60.0
"""Longest time to read one body, because a stalled body keeps its share of `MAX_BODIES_BYTES`."""

NUM_DNS_THREADS = 8
MAX_DNS_WAIT_S = 10.0
"""Longest wait for the hosts of one request's media URLs."""


class BodyMemory:
    """Counts the bytes of the bodies that are being read."""

    def __init__(self) -> None:
        self._num_bytes = 0

    @contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """Yield a function that reserves bytes for one body; the end of the block frees them.

        Raises:
            ApiError: 503: the other bodies hold `MAX_BODIES_BYTES`.
        """
        taken = 0

        def take(num_bytes: int) -> None:
            nonlocal taken
            if self._num_bytes + num_bytes > MAX_BODIES_BYTES:
                raise ApiError(
                    503,
                    f"the gateway reads other bodies, {MAX_BODIES_BYTES:,} bytes at most; call again later",
                    code="gateway_busy",
                    headers={"Retry-After": str(RETRY_AFTER_S)},
                )
            taken += num_bytes
            self._num_bytes += num_bytes

        try:
            yield take
        finally:
            self._num_bytes -= taken


async def read_body(request: Request, memory: BodyMemory, max_request_bytes: int) -> bytes:
    """Return the body of a call.

    Args:
        request: The HTTP call.
        memory: Counter of the bytes of all bodies that are being read.
        max_request_bytes: Largest request that the queue takes.

    Raises:
        ApiError: 408 after `MAX_BODY_S`; 413 for a body over its limit; 503 if other bodies fill
            the memory.
    """
    try:
        with memory.share() as take:
            async with asyncio.timeout(MAX_BODY_S):
                return await _read(request, take, max_element_bytes(max_request_bytes))
    except TimeoutError:
        message = f"the body did not come within {MAX_BODY_S:g} s; send it faster, or a smaller one"
        raise ApiError(408, message, code="body_timeout") from None


async def _read(request: Request, take: Callable[[int], None], max_bytes: int) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        take(len(chunk))
        body += chunk
        if len(body) > max_bytes:
            raise too_large("the body", max_bytes, "GRISTMILL_MAX_REQUEST_BYTES")
    return bytes(body)


def queued_request(
    body: bytes, tenant: Tenant, key: str | None, call_id: str, max_request_bytes: int
) -> QueuedRequest:
    """Return the request of a body. Its tenant is the caller, even if the body names another.

    Args:
        body: A request in JSON.
        tenant: The calling tenant.
        key: The Idempotency-Key, which becomes part of the request's id.
        call_id: The X-Request-Id of the call, which becomes part of the metadata.
        max_request_bytes: Largest request that the queue takes.

    Raises:
        InvalidRequest: The body breaks a rule.
    """
    default_id = key or str(ULID())
    request = request_from_json(body, max_request_bytes=max_request_bytes, default_id=default_id)
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

    async def check(self, request: QueuedRequest) -> None:
        """Check the media URLs of one request.

        Raises:
            InvalidRequest: A URL is not allowed, or the DNS did not answer within `MAX_DNS_WAIT_S`.
        """
        loop = asyncio.get_running_loop()
        looking = loop.run_in_executor(self._threads, partial(check_media, request, self._allowed))
        try:
            await asyncio.wait_for(looking, MAX_DNS_WAIT_S)
        except TimeoutError:
            raise InvalidRequest(
                f"request {request.id}: the hosts of its media URLs could not be looked up within {MAX_DNS_WAIT_S:g} s;"
                " send the data itself as data: URLs, or try again"
            ) from None

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
                    "value": {"endpoint": "/v1/completions", "body": {"prompt": "Hello"}, "priority": "high"}
                },
            },
        }
    },
}  # fmt: skip
"""The body's schema for the OpenAPI page. FastAPI does not know it, because `read_body` reads the
call."""
