"""structlog, set up once by an entry point: JSON lines on stdout, or colours on a terminal."""

import logging
import sys

import structlog


def configure_logging(level: str = "INFO") -> None:
    """Send events to stdout, JSON unless it is a terminal.

    Args:
        level: DEBUG, INFO, WARNING or ERROR.
    """
    is_terminal = sys.stdout.isatty()
    renderer = (
        structlog.dev.ConsoleRenderer() if is_terminal else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level]),
        logger_factory=structlog.PrintLoggerFactory(sys.stdout),
        cache_logger_on_first_use=True,
    )
