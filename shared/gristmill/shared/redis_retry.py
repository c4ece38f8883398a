"""Repeat calls until Redis answers, and report waits. This is the only retry above the client.

redis-py's defaults retry writes and lose pops (docs/decisions/0003-redis-client.md), so `connection.connect`
switches them off. `retrying` repeats a whole operation of `Queue` instead; each is safe to send twice.
"""

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

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

from gristmill.shared.errors import NotReplicated, TooLargeForRedis
from gristmill.shared.log import warn
from gristmill.shared.redis_trouble import own_text, remedy, trouble
from gristmill.shared.redis_url import redacted

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

MIN_REFUSED_BYTES = 512 * 1024
"""Smallest call that Redis can refuse for its size: neither of its two limits can be below 1 MiB."""

REFUSED_BULK = "invalid bulk length"
"""Text of Redis' error for a value above proto-max-bulk-len; it has no code of its own."""

MAX_BREAKS = 5
"""Closed connections in a row that count as a refusal; with their pauses they take about two seconds."""

WAIT_MIN_S = 0.05
WAIT_MAX_S = 2.0
"""First and longest pause between two tries, in seconds."""

WAIT_JITTER_S = 0.5
"""Largest random part of a pause in seconds: it spreads the tries of many processes after an outage."""


def is_transient(error: Exception) -> bool:
    """Return whether the same call may succeed later."""
    if isinstance(error, ResponseError) and str(error).partition(" ")[0] in _TRANSIENT_CODES:
        return True
    return isinstance(error, TRANSIENT) and not isinstance(error, _FINAL)


async def retrying(call: Callable[[], Awaitable[T]], timeout_s: float | None = None) -> T:
    """Repeat an operation until Redis answers; a refused password is not repeated.

    Args:
        call: One operation of `Queue`; each is safe to send twice.
        timeout_s: Seconds after which to give up; None never gives up.

    Raises:
        redis.exceptions.RedisError: The last error, after `timeout_s`.
    """
    deadline_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
    num_retries = 0
    while True:
        try:
            answer = await call()
        except Exception as error:
            if not is_transient(error) or time.monotonic() >= deadline_s:
                raise
            num_retries += 1
            _announcement.on_retry(num_retries, error)
        else:
            if num_retries:
                _announcement.notice.end()
            return answer
        await asyncio.sleep(_pause_s(num_retries))


async def retrying_sized(
    call: Callable[[], Awaitable[T]],
    num_bytes: int,
    is_answering: Callable[[], Awaitable[object]],
    max_breaks: int = MAX_BREAKS,
) -> T:
    """Repeat an operation as `retrying` does, unless Redis refuses it for its size.

    A value above proto-max-bulk-len gets an error. A command above client-query-buffer-limit gets a closed
    connection and no answer, as in an outage; but in an outage Redis does not answer other calls.

    Args:
        call: One operation of `Queue`; each is safe to send twice.
        num_bytes: Bytes of the operation's values.
        is_answering: A small call to the same server.
        max_breaks: Closed connections in a row, each while Redis answers small calls, that count as a refusal.

    Raises:
        TooLargeForRedis: Redis refuses the operation for its size.
    """
    num_breaks = 0

    async def attempt() -> T:
        nonlocal num_breaks
        try:
            return await call()
        except ResponseError as error:
            if REFUSED_BULK in str(error):
                raise TooLargeForRedis(num_bytes) from error
            raise
        except (ConnectionError, OSError) as error:
            num_breaks += 1
            try:
                await is_answering()
            except Exception:
                num_breaks = 0  # an outage
                raise
            if num_breaks >= max_breaks:
                raise TooLargeForRedis(num_bytes) from error
            raise

    return await (retrying(call) if num_bytes < MIN_REFUSED_BYTES else retrying(attempt))


def _pause_s(num_retries: int) -> float:
    backoff_s = math.ldexp(WAIT_MIN_S, min(num_retries - 1, 10))
    return min(WAIT_MAX_S, backoff_s + random.uniform(0, WAIT_JITTER_S))  # noqa: S311  # no secret


class RedisNotice:
    """Reports that calls wait for Redis, at most once in an interval.

    Args:
        url: URL of this Redis; user and password are left out of the notice. "" if it is not known.
        interval_s: Shortest time between two notices; infinity for one notice an outage.
        tell: Called with one line for people; None warns of `redis.waited_for` instead.
    """

    def __init__(
        self,
        url: str,
        interval_s: float = NOTICE_INTERVAL_S,
        tell: Callable[[str], object] | None = None,
    ) -> None:
        self._url = redacted(url) if url else ""
        self._interval_s = interval_s
        self._tell = tell
        self._next_s = 0.0

    def __call__(self, error: Exception) -> None:
        """Report the error of the last try, unless a notice went out within the interval."""
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + self._interval_s
        message = f"Redis{self._url and f' at {self._url}'} {trouble(error)}; waiting for it"
        if self._tell:
            self._tell(message)
            return
        facts = {"url": self._url} if self._url else {}
        what_to_do = remedy(error)
        warn(
            "redis.waited_for",
            f"{message}; {what_to_do}",
            **facts,
            error=own_text(error),
            remedy=what_to_do,
        )

    def end(self) -> None:
        """Note that Redis answers again: with one notice an outage, the next error is a new outage."""
        if math.isinf(self._interval_s):
            self._next_s = 0.0


@dataclass(slots=True)
class _Announcement:
    """What this process does when a call waits.

    Attributes:
        notice: Reports the wait.
        retries_before: Retries of one call before its first report.
    """

    notice: RedisNotice
    retries_before: int

    def on_retry(self, num_retries: int, error: Exception) -> None:
        if num_retries > self.retries_before:
            self.notice(error)


RETRIES_BEFORE_NOTICE = 3
"""Retries that people need not see: together they last about a second."""

_announcement = _Announcement(RedisNotice("", math.inf), RETRIES_BEFORE_NOTICE)
"""The default is for people's own programs; entry points replace it."""


def announce_redis_waits(
    url: str,
    *,
    retries_before: int = 0,
    interval_s: float = NOTICE_INTERVAL_S,
    tell: Callable[[str], object] | None = None,
) -> None:
    """Make each call of `retrying` report that it waits.

    Entry points call it: it holds for the whole process.

    Args:
        url: URL of this Redis; user and password are left out of the notice.
        retries_before: Retries of one call before its first notice.
        interval_s: Shortest time between two notices.
        tell: Called with one line for people; None logs `redis.waited_for` instead.
    """
    _announcement.notice = RedisNotice(url, interval_s, tell)
    _announcement.retries_before = retries_before
