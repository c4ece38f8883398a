"""Keep open pages up to date. One read of Redis serves all viewers of a page; a page without viewers is not read."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import orjson
from redis.exceptions import RedisError

from gristmill.producer.gateway.http_errors import ApiError
from gristmill.shared.errors import GristmillError

FRESH_S = 2.0
"""Seconds between two reads of an open page."""

MAX_VIEWERS = 100
"""Most open pages that one gateway keeps up to date; each holds a connection. Further ones still load."""

MAX_CACHED_PAGES = 200
"""Most pages whose last content is kept; the oldest goes first."""

CHECK_SESSION_S = 30.0
"""Seconds after which an open page notices that its session has ended."""

QUIET_S = 15.0
"""Longest silence: then a comment keeps proxies from closing the connection."""

READ_TIMEOUT_S = 5.0
"""Longest read of a page; after it the page counts as not readable."""

TROUBLE = (RedisError, OSError, GristmillError, ApiError)
"""Errors of a read, a timeout included."""


@dataclass(slots=True)
class _CachedPage:
    """The last content of a page; the lock makes its viewers share one read."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    html: str = ""
    error: Exception | None = None
    read_s: float = float("-inf")


class LivePages:
    """The open pages of one gateway.

    Args:
        stopping: Set when the gateway is stopping; streams then end.
    """

    def __init__(self, stopping: asyncio.Event) -> None:
        self._stopping = stopping
        self._cached: dict[str, _CachedPage] = {}
        self.num_viewers = 0

    async def fragment(self, page: str, read: Callable[[], Awaitable[str]]) -> str:
        """Return the content of a page, at most `FRESH_S` old. Callers at the same time share one read, and its error.

        Args:
            page: Path and query of the page.
            read: Reads and renders it.

        Raises:
            RedisError, OSError: Redis does not answer, or not within `READ_TIMEOUT_S`.
            GristmillError, ApiError: The page does not exist, or cannot be read.
        """
        cached = self._cached.pop(page, None) or _CachedPage()
        self._cached[page] = cached  # the last one is the youngest
        while len(self._cached) > MAX_CACHED_PAGES:
            del self._cached[next(iter(self._cached))]
        async with cached.lock:
            if time.monotonic() - cached.read_s >= FRESH_S:
                await _read_into(cached, read)
            if cached.error:
                raise cached.error.with_traceback(None)
            return cached.html

    def check_room(self) -> None:
        """Check that one more viewer fits.

        Raises:
            ApiError: 503: `MAX_VIEWERS` pages are open.
        """
        if self.num_viewers >= MAX_VIEWERS:
            message = f"{MAX_VIEWERS} live pages are open on this gateway, the limit; close one, or reload by hand"
            raise ApiError(503, message, code="too_many_viewers")

    async def events(
        self,
        page: str,
        read: Callable[[], Awaitable[str]],
        is_signed_in: Callable[[], Awaitable[bool]],
    ) -> AsyncIterator[str]:
        """Yield an event `page` for each new content, and `trouble` while Redis cannot be read.

        Args:
            page: Path and query of the page.
            read: Reads and renders it.
            is_signed_in: Says whether the session still stands; the stream ends with the event `ended` if not.
        """
        if self.num_viewers >= MAX_VIEWERS:
            return  # others came since `check_room`; the browser asks again and gets the 503
        self.num_viewers += 1
        try:
            async for event in self._events(page, read, is_signed_in):
                yield event
        finally:
            self.num_viewers -= 1

    async def _events(
        self,
        page: str,
        read: Callable[[], Awaitable[str]],
        is_signed_in: Callable[[], Awaitable[bool]],
    ) -> AsyncIterator[str]:
        sent, sent_s, checked_s = "", time.monotonic(), time.monotonic()
        yield "retry: 3000\n\n"
        while not self._stopping.is_set():
            now_s = time.monotonic()
            if now_s - checked_s >= CHECK_SESSION_S:
                checked_s = now_s
                if not await is_signed_in():
                    yield _event("ended", "")
                    return
            event = await self._next_event(page, read)
            if event != sent:
                sent, sent_s = event, now_s
                yield event
            elif now_s - sent_s >= QUIET_S:
                sent_s = now_s
                yield ": nothing new\n\n"
            await self._pause()

    async def _next_event(self, page: str, read: Callable[[], Awaitable[str]]) -> str:
        try:
            return _event("page", await self.fragment(page, read))
        except TROUBLE as error:
            is_redis = isinstance(error, RedisError | OSError)
            return _event(
                "trouble", "Redis cannot be read at the moment" if is_redis else str(error)
            )

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(FRESH_S):
                await self._stopping.wait()
        except TimeoutError:
            return


async def _read_into(cached: _CachedPage, read: Callable[[], Awaitable[str]]) -> None:
    """Read a page, and keep its content or its error for all who wait: each would find Redis just as slow."""
    cached.error = None
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            cached.html = await read()
    except TROUBLE as error:
        cached.error = error
    cached.read_s = time.monotonic()


def _event(name: str, data: str) -> str:
    return f"event: {name}\ndata: {orjson.dumps(data).decode()}\n\n"
