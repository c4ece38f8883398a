"""Run one row: call its producer, run its worker, read its progress from Redis and marks."""

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
    """A peer failed; the text says what happened."""


def kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process and its children, including those in other process groups."""
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
        row: Queue and configuration to run.
        python: Interpreter of the row's environment.
        url: URL of the server, which nothing else uses while the row runs.
        folder: Folder for logs and marks.
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
        """Delete everything on the server."""
        self._databases[0].flushall()

    def call(self, action: str, number: int) -> list[float]:
        """Make the producer do an action `number` times, and return the seconds that it measured.

        Args:
            action: submit, answers or slow.
            number: Number of tasks.

        Raises:
            PeerFailed: The producer failed or took more than `CALL_LIMIT_S`.
        """
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
        """Run the worker for the length of a block, then kill it and its children."""
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
        """Wait until `number` tasks are done or `limit_s` is over; return the number of done tasks.

        Raises:
            PeerFailed: There is no limit, and a minute was not enough.
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
        """Wait until `number` tasks left such a mark, and return the task of each mark.

        A task that left the mark twice appears twice.

        Raises:
            PeerFailed: There is no limit, and a minute was not enough.
        """
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
