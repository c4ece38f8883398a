"""One row at work: its producer calls, its worker, and how far it is, seen from outside."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from peers.rows import CONCURRENCY, Row
from redis import Redis

from gristmill.local.processes import die_with_parent

TASKS = Path(__file__).resolve().parent / "tasks"
START_LIMIT_S = 60.0
CALL_LIMIT_S = 300.0
POLL_S = 0.02


class PeerFailed(Exception):
    """It did not do what was asked; the text says what came instead."""


def kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process and its children, those in process groups of their own too."""
    try:
        parent = psutil.Process(process.pid)
        doomed = [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        doomed = []
    for each in doomed:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    process.wait()


class Bench:
    """Runs one row against one server.

    Args:
        row: Which queue, how configured.
        python: The interpreter of its environment.
        url: The server, for this row alone while it works.
        folder: For logs and marks.
    """

    def __init__(self, row: Row, python: Path, url: str, folder: Path) -> None:
        self.row = row
        self._python = python
        self._url = url.removesuffix("/0")
        stem = "".join(c if c.isalnum() else "-" for c in row.name)
        self._log, self._marks = folder / f"{stem}.log", folder / f"{stem}.marks"
        self.gate = folder / f"{stem}.gate"
        self._number = 0
        self._databases = {number: Redis.from_url(f"{self._url}/{number}") for number in (0, 1)}
        self._environment = {
            **os.environ,
            **row.environment,
            "PATH": f"{python.parent}:{os.environ['PATH']}",
            "PYTHONPATH": f"{TASKS}:{os.environ.get('PYTHONPATH', '')}",
            "PEER_URL": self._url,
            "PEER_MARKS": str(self._marks),
            "PEER_GATE": str(self.gate),
            "REDIS_URL": self._url,
            "MAX_IN_FLIGHT": str(CONCURRENCY),
            "GRISTMILL_HEALTH_PORT": "0",
            "GRISTMILL_LEASE_S": "10",
        }

    def empty(self) -> None:
        """Forget all that the server holds."""
        self._databases[0].flushall()

    def call(self, action: str, number: int) -> list[float]:
        """Have the producer do something that many times; returns the seconds it measured."""
        self._number = number
        command = [str(self._python), str(TASKS / "call.py"), self.row.module, action, str(number)]
        try:
            done = subprocess.run(  # noqa: S603  # our own rows
                command,
                env=self._environment,
                capture_output=True,
                text=True,
                timeout=CALL_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise PeerFailed(f"{action} took more than {CALL_LIMIT_S:.0f} s") from None
        if done.returncode:
            raise PeerFailed(f"{action}: {' '.join(done.stderr.splitlines()[-1:])[:200]}")
        seconds: list[float] = json.loads(done.stdout.splitlines()[-1])
        return seconds

    @contextmanager
    def worker(self) -> Iterator[None]:
        """Run the worker for the length of a block; then it is killed, with its children."""
        command = [part.format(url=self._url, tasks=TASKS) for part in self.row.worker]
        command[0] = str(self._python.parent / command[0])
        with self._log.open("ab") as log:
            process = subprocess.Popen(  # noqa: S603  # our own rows
                command,
                env=self._environment,
                cwd=self._log.parent,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent,  # noqa: PLW1509  # one C call, no locks
            )
        try:
            yield
        finally:
            kill(process)

    def until(self, number: int, limit_s: float | None = None) -> int:
        """Wait until that many are done, or `limit_s` is over; returns how many.

        Raises:
            PeerFailed: Without a limit, nothing came for a minute.
        """
        started_s = time.monotonic()
        while (done := self.row.num_done(self._databases, self._number)) < number:
            waited_s = time.monotonic() - started_s
            if limit_s is None and waited_s > START_LIMIT_S:
                raise PeerFailed(f"nothing done in {START_LIMIT_S:.0f} s: {self._last_words()}")
            if limit_s is not None and waited_s > limit_s:
                break
            time.sleep(POLL_S)
        return done

    def until_marked(self, event: str, number: int, limit_s: float | None = None) -> list[int]:
        """Wait until that many tasks left such a mark; returns the tasks, twice if marked twice."""
        started_s = time.monotonic()
        while len(set(marked := self._marked(event))) < number:
            waited_s = time.monotonic() - started_s
            if limit_s is None and waited_s > START_LIMIT_S:
                raise PeerFailed(f"nothing began in {START_LIMIT_S:.0f} s: {self._last_words()}")
            if limit_s is not None and waited_s > limit_s:
                break
            time.sleep(POLL_S)
        return marked

    def _marked(self, event: str) -> list[int]:
        lines = self._marks.read_text().splitlines() if self._marks.exists() else []
        return [int(line.split()[1]) for line in lines if line.startswith(event)]

    def _last_words(self) -> str:
        return " ".join(self._log.read_text(errors="replace").splitlines()[-1:])[:200]
