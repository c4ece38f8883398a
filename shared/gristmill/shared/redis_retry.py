"""Repeat calls until Redis answers, and report waits. This is the only retry above the client.

redis-py's defaults retry writes and lose pops (docs/decisions/0003-redis-client.md), so `connection.connect`
switches them off. `retrying` repeats a whole operation of `Queue` instead; each is safe to send twice.
"""

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import stamina
import structlog
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
    SlotNotCoveredError,
    TimeoutError,
    TryAgainError,
)
from stamina.instrumentation import RetryDetails, set_on_retry_hooks

from gristmill.shared.errors import NotReplicated
from gristmill.shared.redis_url import redacted

log = structlog.get_logger()

T = TypeVar("T")

TRANSIENT = (
    ConnectionError, TimeoutError, BusyLoadingError, NoScriptError, ReadOnlyError, TryAgainError,
    MasterDownError, ClusterDownError, SlotNotCoveredError, OutOfMemoryError, OSError, NotReplicated,
)  # fmt: skip
"""Errors that end when Redis, the network, its primary or a replica is back, or when memory is freed."""

_TRANSIENT_CODES = {"NOREPLICAS", "MISCONF", "BUSY", "UNBLOCKED", "NOSCRIPT"}
"""Error codes without a redis-py class: too few replicas, a full disk, a long script, a
failover."""

_FINAL = (AuthenticationError, AuthorizationError)
"""Kinds of ConnectionError that a retry cannot fix: the operator must fix the login."""

NOTICE_INTERVAL_S = 10.0
"""Shortest time between two notices in a log, in seconds; an hour's outage makes 360 lines."""


def is_transient(error: Exception) -> bool:
    """Return whether the same call may succeed later."""
    if isinstance(error, ResponseError) and str(error).partition(" ")[0] in _TRANSIENT_CODES:
        return True
    return isinstance(error, TRANSIENT) and not isinstance(error, _FINAL)


def is_missing_database(error: Exception) -> bool:
    """Return whether the server has no database of the number that the URL names."""
    return isinstance(error, ResponseError) and "DB index" in str(error)


async def retrying(call: Callable[[], Awaitable[T]], timeout_s: float | None = None) -> T:
    """Repeat an operation until Redis answers; a refused password is not repeated.

    Args:
        call: One operation of `Queue`; each is safe to send twice.
        timeout_s: Seconds after which to give up; None never gives up.

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


class RedisNotice:
    """Reports that calls wait for Redis, at most once in an interval.

    Args:
        url: URL of this Redis; user and password are left out of the notice.
        interval_s: Shortest time between two notices.
        tell: Called with one line for people; None logs `redis.waited_for` instead.
    """

    def __init__(
        self,
        url: str,
        interval_s: float = NOTICE_INTERVAL_S,
        tell: Callable[[str], object] | None = None,
    ) -> None:
        self._url = redacted(url)
        self._interval_s = interval_s
        self._tell = tell
        self._next_s = 0.0

    def __call__(self, error: Exception) -> None:
        """Report the error of the last try, unless a notice went out within the interval."""
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + self._interval_s
        if self._tell:
            self._tell(f"Redis at {self._url} does not answer ({error}); waiting for it")
            return
        remedy = "check that it runs, that this machine may reach it, and REDIS_URL"
        log.warning("redis.waited_for", url=self._url, error=str(error), remedy=remedy)


def announce_redis_waits(
    url: str,
    *,
    retries_before: int = 0,
    interval_s: float = NOTICE_INTERVAL_S,
    tell: Callable[[str], object] | None = None,
) -> None:
    """Make each call of `retrying` report that it waits.

    Entry points call it: it replaces the retry hooks of the whole process.

    Args:
        url: URL of this Redis; user and password are left out of the notice.
        retries_before: Retries of one call before its first notice.
        interval_s: Shortest time between two notices.
        tell: Called with one line for people; None logs `redis.waited_for` instead.
    """
    notice = RedisNotice(url, interval_s, tell)

    def on_retry(details: RetryDetails) -> None:
        if details.retry_num > retries_before:
            notice(details.caused_by)

    set_on_retry_hooks([on_retry])
