"""Link a worker's process to its parent: the end of the worker.

The worker reports its state over a pipe once a second, and the parent kills a worker that is
silent. The kernel kills a worker whose parent is dead. Workers that share devices start their
engines one after another, because vLLM's memory profiling counts what a neighbour takes meanwhile.
"""

import asyncio
import ctypes
import fcntl
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass

import orjson

MAX_REASON_CHARS = 500
"""Most characters of a reason in a report. A report then fits into one atomic write to a pipe."""

TURN_POLL_S = 0.2
"""Seconds between two tries to get the turn to start an engine."""

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Report:
    """The state of a worker.

    Attributes:
        health_port: Loopback port of the worker's own probes and metrics.
        unready_reason: Why the worker is not ready; None if it is ready.
        num_settled: Requests whose results the worker has written.
        num_running: Requests in the worker's engine.
    """

    health_port: int
    unready_reason: str | None
    num_settled: int
    num_running: int = 0


@dataclass(frozen=True, slots=True)
class ParentLink:
    """The link of one worker to its parent.

    Attributes:
        engine: Number of the worker's engine; labels its logs and series.
        parent_pid: Process id of the parent.
        report_fd: End of a pipe for reports.
        turn_fd: Open file that all workers of the same devices lock to start their engine.
        num_sharing: Engines that share the devices of this worker's engine, itself included.
    """

    engine: str
    parent_pid: int
    report_fd: int
    turn_fd: int
    num_sharing: int = 1

    def follow_parent(self) -> None:
        """Have the kernel kill this process when the parent dies. Call it first, on the main thread."""
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != self.parent_pid:  # it died before the call
            _die()
        for descriptor in (self.report_fd, self.turn_fd):
            os.set_inheritable(descriptor, False)
        os.set_blocking(self.report_fd, False)

    def report(self, report: Report) -> None:
        """Send a report; drop it if the parent reads none at the moment."""
        fields = asdict(report)
        fields["unready_reason"] = (report.unready_reason or "")[:MAX_REASON_CHARS] or None
        try:
            with suppress(BlockingIOError):
                os.write(self.report_fd, orjson.dumps(fields) + b"\n")
        except BrokenPipeError:
            _die()

    @asynccontextmanager
    async def start_turn(self) -> AsyncIterator[None]:
        """Wait until no other worker of the same devices starts its engine; then it is this one's turn.

        The lock belongs to the process, so the kernel ends the turn of a process that dies. A start that
        fails keeps the turn: a neighbour must not load its model while this process ends or tries again.
        """
        while not self._has_locked():  # noqa: ASYNC110  # the event is in another process
            await asyncio.sleep(TURN_POLL_S)
        yield
        fcntl.lockf(self.turn_fd, fcntl.LOCK_UN)

    def _has_locked(self) -> bool:
        try:
            fcntl.lockf(self.turn_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def _die() -> None:
    """End this process as a dead parent's worker: at once, so that nothing of it stays behind."""
    os.kill(os.getpid(), signal.SIGKILL)
