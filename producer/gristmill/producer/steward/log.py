"""What RQ's loggers say, and that Redis is waited for, as events."""

import logging
import time

import structlog
from redis.exceptions import RedisError

log = structlog.get_logger()

MAX_CHARACTERS = 200


NOTICE_S = 10.0
"""Shortest time between two notices of a Redis that does not answer."""


class Notice:
    """Says, not too often, that Redis is waited for.

    Args:
        url: Which one, without its password.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._next_s = 0.0

    def __call__(self, error: Exception) -> None:
        """Tell the error of the last try."""
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + NOTICE_S
            remedy = "check that it runs, that this machine may reach it, and REDIS_URL"
            log.warning("redis.waited_for", url=self._url, error=str(error), remedy=remedy)


def route_rq_logs() -> None:
    """Send RQ's warnings and errors to structlog; what it says below that, we say ourselves."""
    logger = logging.getLogger("rq")
    logger.handlers = [_Router(logging.WARNING)]
    logger.propagate = False


class _Router(logging.Handler):
    """Keeps the first line: what follows is a trace, and may quote what a job was given."""

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage().partition("\n")[0][:MAX_CHARACTERS]
        error = record.exc_info[1] if record.exc_info else None
        fields = {"error": _told(error)} if error else {}
        log.warning("rq.warned", logger=record.name, message=message, **fields)


def _told(error: BaseException) -> str:
    name = type(error).__name__
    return f"{name}: {error}" if isinstance(error, RedisError) else name
