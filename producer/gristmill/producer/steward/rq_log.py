"""Turn the messages of RQ's own loggers into log events."""

import logging

import structlog
from redis.exceptions import RedisError

log = structlog.get_logger()

MAX_CHARACTERS = 200


def route_rq_logs() -> None:
    """Send RQ's warnings and errors to structlog.

    RQ's other messages repeat events of the steward.
    """
    logger = logging.getLogger("rq")
    logger.handlers = [_Router(logging.WARNING)]
    logger.propagate = False


class _Router(logging.Handler):
    """Logs the first line of a message.

    The other lines are a trace, which may quote a job's arguments.
    """

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage().partition("\n")[0][:MAX_CHARACTERS]
        error = record.exc_info[1] if record.exc_info else None
        fields = {"error": _shown(error)} if error else {}
        log.warning("rq.warned", logger=record.name, message=message, **fields)


def _shown(error: BaseException) -> str:
    name = type(error).__name__
    return f"{name}: {error}" if isinstance(error, RedisError) else name
