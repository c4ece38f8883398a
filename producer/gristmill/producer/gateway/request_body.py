"""The bodies of calls: read within bounds, and parsed without holding up other calls."""

import asyncio
from collections.abc import AsyncIterator, Callable

from fastapi import Request

from gristmill.producer.gateway.body_pool import SMALL_BODY_BYTES, BodyShare
from gristmill.producer.gateway.http_errors import ApiError, too_large
from gristmill.shared.request import Request as QueuedRequest

MAX_BODY_S = 60.0
"""Longest time to read one body, and longest pause in an upload, because a stalled body keeps its share of the
memory."""


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
