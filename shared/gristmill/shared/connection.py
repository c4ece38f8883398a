"""The Redis client of the hot path, and the one retry above it.

redis-py's defaults retry writes and lose pops (see docs/decisions/0003-redis-client.md), so the client
neither retries nor decodes, and `retrying` repeats whole operations, which are safe to send twice.
"""

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar
from urllib.parse import urlsplit

import stamina
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.connection import HiredisRespSerializer
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    ConnectionError,
    MasterDownError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TimeoutError,
    TryAgainError,
)
from stamina.instrumentation import RetryDetails, set_on_retry_hooks

from gristmill.shared.errors import SettingsError

T = TypeVar("T")

TRANSIENT = (
    ConnectionError, TimeoutError, BusyLoadingError, NoScriptError, ReadOnlyError, TryAgainError,
    MasterDownError, ClusterDownError, OutOfMemoryError, OSError,
)  # fmt: skip
"""What passes when Redis, or the way to it, comes back, or memory is freed."""

_TRANSIENT_CODES = {"NOREPLICAS", "MISCONF", "BUSY", "UNBLOCKED", "NOSCRIPT"}
"""Answers without a class of their own: too few replicas, a full disk, a long script, a failover."""

_FINAL = (AuthenticationError, AuthorizationError)
"""Kinds of ConnectionError that a repeat does not mend: the operator must."""

MAX_CONNECTIONS = 10_000
"""As many as a server accepts by default; redis-py's 100 fail the 101st call that waits."""

_SCHEMES = ("redis", "rediss", "unix")


def connect(url: str, socket_timeout_s: float = 30.0) -> "Redis":
    """Return a client for a URL; connects at the first use.

    Args:
        url: redis://, rediss:// or unix://.
        socket_timeout_s: Longest wait for an answer; above any blocking time.

    Raises:
        SettingsError: The URL cannot be read; its password is not repeated.
    """
    try:
        scheme = urlsplit(url).scheme
        if scheme not in _SCHEMES:
            raise SettingsError(
                f"REDIS_URL has the scheme {scheme!r}; use redis://, rediss:// or unix://"
            )
        redis = Redis.from_url(
            url,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=socket_timeout_s,
            socket_connect_timeout=min(5.0, socket_timeout_s),
            socket_keepalive=True,
            health_check_interval=0,
            max_connections=MAX_CONNECTIONS,
            decode_responses=False,
        )
    except ValueError:  # its text may quote a part of the password
        message = (
            "REDIS_URL cannot be read; write redis://user:password@host:port/db and percent-encode"
            " what is special in the password"
        )
        raise SettingsError(message) from None
    pool = redis.connection_pool
    pool.connection_class = type("PackedConnection", (_PackedByHiredis, pool.connection_class), {})
    return redis


class _PackedByHiredis:
    """Commands written by hiredis, as redis-py's synchronous connections do; the asyncio ones join in Python.

    It halves what a client spends on a bulk submit.
    """

    pack_command = HiredisRespSerializer.pack


def redacted(url: str) -> str:
    """Return a URL without user, password and options, for messages and logs."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "<unreadable URL>"
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def is_transient(error: Exception) -> bool:
    """Whether repeating an operation may mend its error."""
    if isinstance(error, ResponseError) and str(error).partition(" ")[0] in _TRANSIENT_CODES:
        return True
    return isinstance(error, TRANSIENT) and not isinstance(error, _FINAL)


def notice_waits(
    tell: Callable[[Exception], None], interval_s: float, retries_before: int = 0
) -> None:
    """Tell, not too often, that calls wait for Redis; for entry points, it is the process's one hook.

    Args:
        tell: Gets the error of the last try.
        interval_s: Shortest time between two notices.
        retries_before: Retries of one call that are not worth a notice.
    """
    next_s = 0.0

    def on_retry(details: RetryDetails) -> None:
        nonlocal next_s
        if details.retry_num > retries_before and time.monotonic() >= next_s:
            next_s = time.monotonic() + interval_s
            tell(details.caused_by)

    set_on_retry_hooks([on_retry])


async def retrying(call: Callable[[], Awaitable[T]], timeout_s: float | None = None) -> T:
    """Repeat an operation until Redis answers; a refused password is not repeated.

    Args:
        call: One operation of `Queue`; each is safe to send twice.
        timeout_s: When to give up; None for never.

    Raises:
        redis.exceptions.RedisError: The last error, after `timeout_s`.
    """
    attempts = stamina.retry_context(
        on=is_transient,
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
