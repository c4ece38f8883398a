"""Set up structlog, once per entry point: JSON lines on stdout, or colours on a terminal.

Library code that runs in people's own programs warns with `warn`, which respects their logging.
"""

import atexit
import logging
import os
import queue
import select
import sys
import threading
from collections.abc import Mapping
from typing import Any, TextIO, cast

import orjson
import structlog
from structlog.typing import EventDict

MAX_LINES = 10_000
"""Most lines that wait for a slow sink; further lines are dropped and counted."""

EXIT_S = 2.0
"""Most seconds that the exit of the process waits for the last lines."""


def configure_logging(level: str = "INFO", facts: Mapping[str, str] | None = None) -> None:
    """Send events to stdout, JSON unless it is a terminal.

    Args:
        level: Lowest level to log: DEBUG, INFO, WARNING or ERROR.
        facts: Fields of every event of this process.
    """

    def with_facts(_logger: Any, _method: str, event: EventDict) -> EventDict:
        return {**event, **facts} if facts else event

    is_terminal = sys.stdout.isatty()
    renderer = (
        structlog.dev.ConsoleRenderer() if is_terminal else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            with_facts,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level]),
        logger_factory=structlog.WriteLoggerFactory(
            cast("TextIO", LineWriter(sys.stdout.fileno()))
        ),
        cache_logger_on_first_use=True,
    )


def warn(event: str, message: str, **facts: Any) -> None:
    """Log a warning from code that also runs in people's own programs.

    A process that configured structlog gets the event. Every other process gets the message through the
    logger `gristmill` of the standard library, which writes to stderr unless the program configures it:
    structlog without a configuration would print to the program's stdout.

    Args:
        event: Name of the event, `noun.past_verb`.
        message: The same in words.
        **facts: Fields of the event.
    """
    if structlog.is_configured():
        structlog.get_logger().warning(event, **facts)
    else:
        logging.getLogger("gristmill").warning(message)


class LineWriter:
    """A text file whose writes never block and never fail: a thread writes them to the sink.

    A stalled log collector or a full disk must not block the code that logs.

    Args:
        sink: File descriptor to write the lines to.
    """

    def __init__(self, sink: int) -> None:
        self._sink = sink
        self._lines: queue.Queue[str] = queue.Queue(MAX_LINES)
        self._num_dropped = 0
        threading.Thread(target=self._carry, name="gristmill-log", daemon=True).start()
        atexit.register(self.drain)

    def write(self, text: str) -> None:
        """Queue one line, with its line end."""
        try:
            self._lines.put_nowait(text)
        except queue.Full:
            self._num_dropped += 1

    def flush(self) -> None:
        """Do nothing: the thread writes each line without it."""

    def drain(self) -> None:
        """Wait until all lines are written, at most `EXIT_S` seconds."""
        lines = self._lines
        with lines.all_tasks_done:
            lines.all_tasks_done.wait_for(lambda: not lines.unfinished_tasks, EXIT_S)

    def _carry(self) -> None:
        while True:
            text = self._lines.get()
            num_dropped, self._num_dropped = self._num_dropped, 0
            if num_dropped:
                text = (
                    orjson.dumps({"event": "log.dropped", "num_lines": num_dropped}).decode()
                    + "\n"
                    + text
                )
            try:
                _write_all(self._sink, text.encode(errors="replace"))
            except OSError:  # full or broken: the next line tries again
                self._num_dropped += num_dropped + 1
            self._lines.task_done()


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:  # the sink was opened non-blocking
            select.select([], [descriptor], [])
