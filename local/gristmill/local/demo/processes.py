"""The processes that the demo starts: each in a session of its own, none outlives the demo."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from gristmill.local.demo.steps import Step
from gristmill.local.server import die_with_parent
from gristmill.shared.errors import GristmillError

POLL_INTERVAL_S = 0.2
TAIL_LINES = 20


class Process:
    """A started Python process whose output goes to a log."""

    def __init__(self, name: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.name = name
        self._process = process
        self._log = log

    def wait(self, shown: Step, timeout_s: float) -> str:
        """Wait for its end; returns its last line of output.

        Raises:
            GristmillError: It failed, or it took too long; with the end of its log.
        """
        deadline = time.monotonic() + timeout_s
        while (code := self._process.poll()) is None:
            self._pause(shown, deadline)
        if code != 0:
            raise self._failure(f"ended with exit code {code}")
        return self._log.read_text(errors="replace").strip().rpartition("\n")[2]

    def wait_until_ready(self, port: int, shown: Step, timeout_s: float) -> None:
        """Wait until `/readyz` answers 200.

        Raises:
            GristmillError: It ended before, or it took too long; with the end of its log.
        """
        deadline = time.monotonic() + timeout_s
        while not _answers(port, "/readyz"):
            if (code := self._process.poll()) is not None:
                raise self._failure(f"ended with exit code {code}")
            self._pause(shown, deadline)

    def _pause(self, shown: Step, deadline: float) -> None:
        if time.monotonic() > deadline:
            raise self._failure("took too long")
        shown.tick()
        time.sleep(POLL_INTERVAL_S)

    def _failure(self, what: str) -> GristmillError:
        tail = self._log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        lines = "\n".join(f"  {line}" for line in tail)
        return GristmillError(f"{self.name} {what}; the end of its log, {self._log}:\n{lines}")

    def stop(self, timeout_s: float) -> None:
        """Ask it to stop; what is left of its session after `timeout_s` is killed."""
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
def running(
    name: str, arguments: Sequence[str], log: Path, environment: Mapping[str, str], grace_s: float
) -> Iterator[Process]:
    """Run this Python with arguments for the length of a block.

    Args:
        name: For messages.
        arguments: Of the interpreter.
        log: Takes its output; overwritten.
        environment: Added to this process's.
        grace_s: How long it may take to stop when asked.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603  # our own arguments
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | environment,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509  # one C call, no locks
        )
    started = Process(name, process, log)
    try:
        yield started
    finally:
        started.stop(grace_s)


def _answers(port: int, path: str) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
