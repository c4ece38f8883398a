"""Isolate EngineCore, the child process in which vLLM computes, from the worker's signals.

A Ctrl-C sends SIGINT to the whole process group. `kill -- -group` or a process supervisor sends
SIGTERM to it. EngineCore would then end and return partial outputs as normal answers, so the
worker's drain would find no requests. This module therefore changes five things in EngineCore:

- It runs in a separate session.
- It watches its parent and ends with it, so that a killed worker leaves no model in memory.
- It reports why it or one of its workers died, and why a constraint failed, which vLLM only logs.
- It keeps the end of its log in a file, because a killed process cannot report.
- It exits before the interpreter's last garbage collection.

`EngineCoreProc.run_engine_core` is the target of that process in vLLM 0.24 to 0.33
(v1/engine/utils.py).
"""

import atexit
import contextlib
import logging
import multiprocessing
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
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
"""Lines at the end of the engine's log that a dead letter keeps as evidence."""

MAX_FAILED_CONSTRAINTS = 1_000
"""Requests whose failed constraint is remembered until their answer is judged."""

_LOG_BYTES = 64 * 2**10
_MAX_REASON_CHARS = 2000

# Set only while `isolated` is open; a forked child inherits it, a spawned one finds None.
_vllm_target: Callable[..., None] | None = None


class CoreReports:
    """The reports of the engine's processes, from one start to the engine's end."""

    def __init__(self) -> None:
        self._reader, self.writer = multiprocessing.Pipe(duplex=False)
        self._processes: list[psutil.Process] = []
        self._reasons: list[str] = []
        self._failed_constraints: dict[str, str] = {}  # the engine's id of a request -> cause
        self._folder = TemporaryDirectory(prefix="gristmill-engine-", ignore_cleanup_errors=True)
        self.log = Path(self._folder.name) / "log"

    def reason(self) -> str | None:
        """Return why the first process failed, or None if no process reported a failure.

        A killed process cannot report one.
        """
        self._read()
        return self._reasons[0] if self._reasons else None

    def failed_constraint(self, request_ids: Sequence[str]) -> str | None:
        """Return why the engine could not keep to the constraint of one of these requests, or None.

        Args:
            request_ids: Ids that the engine got; it adds a suffix, and for each of n choices a prefix.
        """
        self._read()
        for known, cause in self._failed_constraints.items():
            if any(f"{request_id}-" in f"{known}-" for request_id in request_ids):
                return cause
        return None

    def log_tail(self) -> list[str]:
        """Return the last `LOG_TAIL_LINES` lines of the engine's log, oldest first."""
        try:
            text = self.log.read_text(errors="replace")
        except OSError:  # nothing was logged, or the disk is full
            return []
        return text.splitlines()[-LOG_TAIL_LINES:]

    def kill(self) -> None:
        """Kill the reported processes at once.

        Some may be dead already, and some may hang. Others belong to a start that was cancelled.
        """
        self._read()
        while self._processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._processes.pop().kill()

    def close(self) -> None:
        """Stop receiving reports, and delete the log."""
        self._reader.close()
        self._folder.cleanup()

    def _read(self) -> None:
        with contextlib.suppress(EOFError, OSError):  # all have ended, or the pipe is closed
            while self._reader.poll():
                self._take(self._reader.recv())

    def _take(self, report: int | str | tuple[str, str]) -> None:
        if isinstance(report, str):
            self._reasons.append(report)
            return
        if isinstance(report, tuple):
            self._failed_constraints.update([report])
            if len(self._failed_constraints) > MAX_FAILED_CONSTRAINTS:
                del self._failed_constraints[next(iter(self._failed_constraints))]
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            self._processes.append(psutil.Process(report))


@contextlib.contextmanager
def isolated(reports: CoreReports) -> Iterator[None]:
    """Isolate every EngineCore that vLLM starts inside the block from the worker's signals.

    Args:
        reports: Receiver of the processes' reports; they continue after the block.
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
    """Run EngineCore in this child process; the worker never calls it.

    Args:
        reports: Connection that gets the process id now, and the reason if EngineCore fails.
        log: Path of a file for a copy of the log. It and one older file keep `_LOG_BYTES` each.
        *args: vLLM's arguments of `run_engine_core`.
        **kwargs: vLLM's keyword arguments of `run_engine_core`.
    """
    os.setsid()
    threading.Thread(target=_die_with_parent, name="parent-watch", daemon=True).start()
    reports.send(os.getpid())
    _watch_log(log, reports)
    try:
        _target()(*args, **kwargs)
    except Exception as error:
        with contextlib.suppress(OSError):  # the worker has closed the pipe
            reports.send(f"{type(error).__name__}: {error}"[:_MAX_REASON_CHARS])
        raise
    except SystemExit as end:
        if end.code in (None, 0):
            _leave_at_exit()
        raise


def _leave_at_exit() -> None:
    """Have this process exit before the interpreter's last garbage collection.

    vLLM has released everything by now. On a CPU that collection does not return, and vLLM would kill the process
    after `SHUTDOWN_S` (building.py).
    """
    atexit.register(os._exit, 0)


def _watch_log(log: str, reports: Connection) -> None:
    """Copy each log record into a file, and report dead worker processes and failed constraints.

    It replaces the record factory, because vLLM sets up its loggers again when it starts.
    """
    handler = RotatingFileHandler(log, maxBytes=_LOG_BYTES, backupCount=1)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    make = logging.getLogRecordFactory()

    def watching(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        handler.handle(record)
        if ended := _dead_worker(record):
            with contextlib.suppress(OSError):  # the worker has closed the pipe
                reports.send(ended)
        if (failure := _failed_constraint(record)) and _has_room(reports):
            reports.send(failure)
        return record

    logging.setLogRecordFactory(watching)


def _dead_worker(record: logging.LogRecord) -> str | None:
    """Return how a worker process of vLLM ended, or None if the log record reports no such end.

    Only vLLM's log has the exit code (`monitor_workers` in v1/executor/multiproc_executor.py). The
    error that follows says only that the engine stopped. If the kernel does not know the code yet,
    vLLM logs None.
    """
    match record.args:
        case (str(name), int() | None as exit_code) if "died unexpectedly" in str(record.msg):
            return describe_exit(name, exit_code)
    return None


def _failed_constraint(record: logging.LogRecord) -> tuple[str, str] | None:
    """Return the id and the cause of a request whose constraint failed in the engine, or None.

    The answer to such a request is a 500 without a reason. Only the log has the reason
    (`_create_grammar` in v1/structured_output and `update_from_output` in v1/core/sched/scheduler.py).
    """
    if record.levelno < logging.ERROR or not isinstance(record.args, tuple):
        return None
    match record.msg, record.args:
        case "Failed to compile grammar for request %s", (str(request_id),):
            cause = record.exc_info[1] if record.exc_info else "it does not compile"
            return request_id, str(cause)[:_MAX_REASON_CHARS]
        case str(message), (_, str(request_id)) if "grammar rejected tokens" in message:
            return request_id, "no token of the model continues the answer"
    return None


def _has_room(reports: Connection) -> bool:
    """Return whether a report can be sent without waiting for the worker to read the earlier ones."""
    poll = select.poll()
    poll.register(reports, select.POLLOUT)
    return bool(poll.poll(0))


def _target() -> Callable[..., None]:
    if _vllm_target is not None:
        return _vllm_target
    from vllm.v1.engine.core import EngineCoreProc

    return EngineCoreProc.run_engine_core  # type: ignore[no-any-return]


def _die_with_parent() -> None:
    """Kill this process when the worker ends; vLLM's own workers then end by themselves."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGKILL)
