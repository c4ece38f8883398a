"""EngineCore, the child process in which vLLM computes, kept out of reach of our signals.

A Ctrl-C reaches the whole process group, and `kill -- -group` or a supervisor does the same with
SIGTERM. EngineCore would end, hand out what it had so far as normal answers, and leave a drain
nothing to drain. So it runs in a session of its own, watches its parent instead (a worker that is
killed must not leave a model in memory), says why it or one of its workers died, which vLLM only logs,
and keeps the end of its log in a file, for the death in which it can say nothing any more.

`EngineCoreProc.run_engine_core` is the target of that process in vLLM 0.24 to 0.33
(v1/engine/utils.py).
"""

import contextlib
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from logging.handlers import RotatingFileHandler
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from gristmill.worker.engine.vllm.exits import describe_exit

LOG_TAIL_LINES = 40
_LOG_BYTES = 64 * 2**10
_MAX_REASON_CHARS = 2000

# Set only while `isolated` is open; a forked child inherits it, a spawned one finds None.
_vllm_target: Callable[..., None] | None = None


class CoreReports:
    """What the engine's processes say of themselves during one start and the life after it."""

    def __init__(self) -> None:
        self._reader, self.writer = multiprocessing.Pipe(duplex=False)
        self._processes: list[psutil.Process] = []
        self._reasons: list[str] = []
        self._folder = TemporaryDirectory(prefix="gristmill-engine-", ignore_cleanup_errors=True)
        self.log = Path(self._folder.name) / "log"

    def reason(self) -> str | None:
        """Return why the first of them failed, or None if none said so (a killed process cannot)."""
        self._read()
        return self._reasons[0] if self._reasons else None

    def log_tail(self) -> list[str]:
        """Return the last lines of their log, oldest first."""
        try:
            text = self.log.read_text(errors="replace")
        except OSError:  # nothing was logged, or the disk is full
            return []
        return text.splitlines()[-LOG_TAIL_LINES:]

    def kill(self) -> None:
        """End those that were started, at once: dead, hung, or a start that nobody waits for."""
        self._read()
        while self._processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._processes.pop().kill()

    def close(self) -> None:
        """Stop listening, and forget the log."""
        self._reader.close()
        self._folder.cleanup()

    def _read(self) -> None:
        with contextlib.suppress(EOFError, OSError):  # nobody left to report, or closed
            while self._reader.poll():
                self._take(self._reader.recv())

    def _take(self, report: int | str) -> None:
        if isinstance(report, str):
            self._reasons.append(report)
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            self._processes.append(psutil.Process(report))


@contextlib.contextmanager
def isolated(reports: CoreReports) -> Iterator[None]:
    """While open, every EngineCore that vLLM starts is kept from our signals.

    Args:
        reports: Where those processes report; it goes on after the block.
    """
    from vllm.v1.engine.core import EngineCoreProc

    global _vllm_target  # noqa: PLW0603  (how a forked child gets the function it must call)
    _vllm_target = EngineCoreProc.run_engine_core
    EngineCoreProc.run_engine_core = partial(run, reports.writer, str(reports.log))
    try:
        yield
    finally:
        EngineCoreProc.run_engine_core = staticmethod(_vllm_target)
        _vllm_target = None
        reports.writer.close()


def run(reports: Connection, log: str, *args: Any, **kwargs: Any) -> None:
    """Run EngineCore in this process; the target of the child, never called in the worker.

    Args:
        reports: Takes the process id now, and the reason if it fails.
        log: Takes a copy of the log, the last `_LOG_BYTES` of it or twice that.
        *args: vLLM's.
        **kwargs: vLLM's.
    """
    os.setsid()
    threading.Thread(target=_die_with_parent, name="parent-watch", daemon=True).start()
    reports.send(os.getpid())
    _watch_log(log, reports)
    try:
        _target()(*args, **kwargs)
    except Exception as error:
        with contextlib.suppress(OSError):  # nobody listens any more
            reports.send(f"{type(error).__name__}: {error}"[:_MAX_REASON_CHARS])
        raise


def _watch_log(log: str, reports: Connection) -> None:
    """Copy each log record into a file, and report a dead worker process.

    The record factory is replaced, because vLLM sets its loggers up anew when it starts.
    """
    handler = RotatingFileHandler(log, maxBytes=_LOG_BYTES, backupCount=1)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    make = logging.getLogRecordFactory()

    def watching(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        handler.handle(record)
        if ended := _dead_worker(record):
            with contextlib.suppress(OSError):  # nobody listens any more
                reports.send(ended)
        return record

    logging.setLogRecordFactory(watching)


def _dead_worker(record: logging.LogRecord) -> str | None:
    """Return how a worker process ended, if that is what the record says.

    Only vLLM's log has the exit code (`monitor_workers` in v1/executor/multiproc_executor.py); the
    error that follows says no more than that the engine stopped. vLLM may look before the kernel
    knows the code, and then logs None.
    """
    match record.args:
        case (str(name), int() | None as exit_code) if "died unexpectedly" in str(record.msg):
            return describe_exit(name, exit_code)
    return None


def _target() -> Callable[..., None]:
    if _vllm_target is not None:
        return _vllm_target
    from vllm.v1.engine.core import EngineCoreProc

    return EngineCoreProc.run_engine_core  # type: ignore[no-any-return]


def _die_with_parent() -> None:
    """Wait for the worker's end, then end too; vLLM's own workers notice and follow."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGKILL)
