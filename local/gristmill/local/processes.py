"""Start processes on this machine that end with the process that started them."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import FrameType

import orjson

from gristmill.local.steps import Step
from gristmill.shared.errors import GristmillError, SettingsError
from gristmill.shared.one_line import one_line
from gristmill.worker.exit_codes import EXIT_SETTINGS

POLL_INTERVAL_S = 0.2
TAIL_LINES = 20
"""Last lines of the log that an error quotes."""

_PRCTL = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
"""Found at import: a fork of a process with threads may copy the loader's lock while another thread holds it."""


def free_port() -> int:
    """Return a TCP port of the loopback address on which no process listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies; a `preexec_fn`, Linux only."""
    if _PRCTL:
        _PRCTL(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class LoggedProcess:
    """A started process whose output goes to a log file."""

    def __init__(self, name: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.name = name
        self._process = process
        self._log = log

    def wait(self, shown: Step, timeout_s: float) -> str:
        """Wait until the process ends and return its last line of output.

        Raises:
            GristmillError: The process failed or took too long; the message has the end of its log.
        """
        deadline = time.monotonic() + timeout_s
        while (code := self._process.poll()) is None:
            if time.monotonic() > deadline:
                raise self.failure("took too long")
            shown.tick()
            time.sleep(POLL_INTERVAL_S)
        if code != 0:
            raise self.failure(_end_of(code))
        return self._log.read_text(errors="replace").strip().rpartition("\n")[2]

    def check(self) -> None:
        """Check that the process runs.

        Raises:
            SettingsError: A worker has ended because a setting is wrong or Redis refuses.
            GristmillError: It has ended for another reason. The message has the error that it logged, or else
                the end of its log.
        """
        if (code := self._process.poll()) is None:
            return
        words = _logged_error(self._log) if code > 0 else None
        told = f"{self.name} {_end_of(code)}: {words}; its log: {self._log}"
        failure = GristmillError(told) if words else self.failure(_end_of(code))
        raise SettingsError(str(failure)) if code == EXIT_SETTINGS else failure

    def failure(self, what: str) -> GristmillError:
        """Return an error that says what the process did, with the end of its log."""
        tail = self._log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        lines = "\n".join(f"  {line}" for line in tail)
        return GristmillError(f"{self.name} {what}; the end of its log, {self._log}:\n{lines}")

    def stop(self, timeout_s: float) -> None:
        """Ask the process to stop; after `timeout_s`, kill it and its children."""
        self._process.terminate()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


@contextmanager
def running_process(
    name: str, command: Sequence[str], log: Path, environment: Mapping[str, str], grace_s: float
) -> Iterator[LoggedProcess]:
    """Run a command for the length of a block.

    Args:
        name: Name of the process in messages.
        command: The program and its arguments.
        log: File for the output; an existing file is overwritten.
        environment: Variables to add to this process's environment.
        grace_s: Seconds between the request to stop and the kill.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603  # our own arguments
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | environment,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509  # one C call, no locks
        )
    started = LoggedProcess(name, process, log)
    try:
        yield started
    finally:
        started.stop(grace_s)


def answers(port: int, path: str) -> bool:
    """Return True if a probe of this machine answers 200."""
    connection = HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


@contextmanager
def stopped_by_sigterm() -> Iterator[None]:
    """Turn SIGTERM into an exit that runs every `finally`, as Ctrl-C does."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _logged_error(log: Path) -> str | None:
    """Return the error of the last JSON line of level error; None if the log has none."""
    for line in reversed(log.read_bytes().splitlines()):
        with suppress(orjson.JSONDecodeError):
            event = orjson.loads(line)
            if isinstance(event, dict) and event.get("level") == "error":
                return one_line(str(event["error"])) if "error" in event else None
    return None


def _end_of(exit_code: int) -> str:
    """Return how a process ended; a negative code is the number of the signal that killed it."""
    if exit_code < 0:
        return f"was killed by {signal.Signals(-exit_code).name}"
    return f"ended with exit code {exit_code}"
