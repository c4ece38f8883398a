"""Log events about RQ: its own warnings, and waits for its Redis."""

import logging
import time

import structlog
from redis.exceptions import RedisError

log = structlog.get_logger()

MAX_CHARACTERS = 200

NOTICE_S = 10.0
"""Shortest time between two notices of a Redis that does not answer."""


class RedisWaitNotice:
    """Logs that the steward waits for Redis, at most once per `NOTICE_S`.

    Args:
        url: URL of that Redis, without its password.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._next_s = 0.0

    def __call__(self, error: Exception) -> None:
        """Log the error of the last try."""
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + NOTICE_S
            remedy = "check that it runs, that this machine may reach it, and REDIS_URL"
            log.warning("redis.waited_for", url=self._url, error=str(error), remedy=remedy)


def route_rq_logs() -> None:
    """Send RQ's warnings and errors to structlog. RQ's other messages repeat events of the steward."""
    logger = logging.getLogger("rq")
    logger.handlers = [_Router(logging.WARNING)]
    logger.propagate = False


class _Router(logging.Handler):
    """Logs the first line of a message. The other lines are a trace, which may quote a job's arguments."""

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage().partition("\n")[0][:MAX_CHARACTERS]
        error = record.exc_info[1] if record.exc_info else None
        fields = {"error": _shown(error)} if error else {}
        log.warning("rq.warned", logger=record.name, message=message, **fields)


def _shown(error: BaseException) -> str:
    name = type(error).__name__
    return f"{name}: {error}" if isinstance(error, RedisError) else name
