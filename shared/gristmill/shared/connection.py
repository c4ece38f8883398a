"""The Redis client of the hot path, and the one retry above it.

redis-py's defaults retry writes and lose pops (see docs/decisions/0003-redis-client.md), so the client
neither retries nor decodes, and `retrying` repeats whole operations, which are safe to send twice.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar
from urllib.parse import urlsplit

import stamina
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    BusyLoadingError,
    ConnectionError,
    ReadOnlyError,
    TimeoutError,
    TryAgainError,
)

from gristmill.shared.errors import SettingsError

T = TypeVar("T")

TRANSIENT = (ConnectionError, TimeoutError, BusyLoadingError, ReadOnlyError, TryAgainError, OSError)
"""What passes when Redis, or the way to it, comes back."""

_SCHEMES = ("redis", "rediss", "unix")


def connect(url: str, socket_timeout_s: float = 30.0) -> "Redis":
    """Return a client for a URL; connects at the first use.

    Args:
        url: redis://, rediss:// or unix://.
        socket_timeout_s: Longest wait for an answer; above any blocking time.

    Raises:
        SettingsError: The URL cannot be read; its password is not repeated.
    """
    scheme = urlsplit(url).scheme
    if scheme not in _SCHEMES:
        raise SettingsError(
            f"REDIS_URL has the scheme {scheme!r}; use redis://, rediss:// or unix://"
        )
    try:
        return Redis.from_url(
            url,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=socket_timeout_s,
            socket_connect_timeout=min(5.0, socket_timeout_s),
            socket_keepalive=True,
            health_check_interval=0,
            decode_responses=False,
        )
    except ValueError as error:
        raise SettingsError(f"REDIS_URL cannot be read: {error}") from None


def redacted(url: str) -> str:
    """Return a URL without its user and password, for messages and logs."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


async def retrying(call: Callable[[], Awaitable[T]], timeout_s: float | None = None) -> T:
    """Repeat an operation until Redis answers.

    Args:
        call: One operation of `Queue`; each is safe to send twice.
        timeout_s: When to give up; None for never.

    Raises:
        redis.exceptions.RedisError: The last error, after `timeout_s`.
    """
    attempts = stamina.retry_context(
        on=TRANSIENT,
        attempts=None,
        timeout=timeout_s,
        wait_initial=0.05,
        wait_max=2.0,
        wait_jitter=0.5,
    )
    async for attempt in attempts:
        with attempt:
            return await call()
    raise AssertionError("unreachable: retry_context returns or raises")
