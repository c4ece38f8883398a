"""EngineCore, the child process in which vLLM computes, kept out of reach of our signals.

A Ctrl-C reaches the whole process group, and `kill -- -group` or a supervisor does the same with
SIGTERM. EngineCore would end, hand out what it had so far as normal answers, and leave a drain
nothing to drain. So it runs in a session of its own, watches its parent instead (a worker that is
killed must not leave a model in memory), and says why it died, which vLLM only logs.

`EngineCoreProc.run_engine_core` is the target of that process in vLLM 0.24 to 0.33
(v1/engine/utils.py).
"""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Any

_MAX_REASON_CHARS = 2000

# Set only while `isolated` is open; a forked child inherits it, a spawned one finds None.
_vllm_target: Callable[..., None] | None = None


class CoreReports:
    """What the engine's processes say of themselves during one start and the life after it."""

    def __init__(self) -> None:
        self._reader, self.writer = multiprocessing.Pipe(duplex=False)
        self._pids: list[int] = []
        self._reasons: list[str] = []

    def reason(self) -> str | None:
        """Return why the first of them failed, or None if none said so (a kill says nothing)."""
        self._read()
        return self._reasons[0] if self._reasons else None

    def kill(self) -> None:
        """End those that were started, at once: a start that nobody waits for any more."""
        self._read()
        while self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pids.pop(), signal.SIGKILL)

    def close(self) -> None:
        """Stop listening; safe to call twice."""
        self._read()
        self._reader.close()

    def _read(self) -> None:
        with contextlib.suppress(EOFError, OSError):  # nobody left to report, or closed
            while self._reader.poll():
                report = self._reader.recv()
                (self._pids if isinstance(report, int) else self._reasons).append(report)


@contextlib.contextmanager
def isolated(reports: CoreReports) -> Iterator[None]:
    """While open, every EngineCore that vLLM starts is kept from our signals.

    Args:
        reports: Where those processes report; it goes on after the block.
    """
    from vllm.v1.engine.core import EngineCoreProc

    global _vllm_target  # noqa: PLW0603  (how a forked child gets the function it must call)
    _vllm_target = EngineCoreProc.run_engine_core
    EngineCoreProc.run_engine_core = partial(run, reports.writer)
    try:
        yield
    finally:
        EngineCoreProc.run_engine_core = staticmethod(_vllm_target)
        _vllm_target = None
        reports.writer.close()


def run(reports: Connection, *args: Any, **kwargs: Any) -> None:
    """Run EngineCore in this process; the target of the child, never called in the worker.

    Args:
        reports: Takes the process id now, and the reason if it fails.
        *args: vLLM's.
        **kwargs: vLLM's.
    """
    os.setsid()
    threading.Thread(target=_die_with_parent, name="parent-watch", daemon=True).start()
    reports.send(os.getpid())
    try:
        _target()(*args, **kwargs)
    except Exception as error:
        with contextlib.suppress(OSError):  # nobody listens any more
            reports.send(f"{type(error).__name__}: {error}"[:_MAX_REASON_CHARS])
        raise


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
