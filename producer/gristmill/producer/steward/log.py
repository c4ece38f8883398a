"""What RQ's loggers say, as one event; without their traces, whose frames are ours to log."""

import logging

import structlog
from redis.exceptions import RedisError

log = structlog.get_logger()

MAX_CHARACTERS = 200


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
