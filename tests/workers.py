"""Workers for the tests: the true wiring in this process, or a process of its own to kill."""

import asyncio
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from gristmill.local.processes import die_with_parent, free_port
from gristmill.shared.errors import EngineDied
from gristmill.shared.queue import Queue
from gristmill.worker.drain import Drain
from gristmill.worker.engine import Engine
from gristmill.worker.liveness import Liveness
from gristmill.worker.settings import WorkerSettings
from gristmill.worker.supervisor import Supervisor
from gristmill.worker.wiring import work

STUB = (sys.executable, str(Path(__file__).with_name("stub_worker.py")))
TRUE = (sys.executable, "-m", "gristmill.worker")


def settings_for(redis_url: str, queue: Queue, /, **fields: Any) -> WorkerSettings:
    """Return worker settings for a test's queue, with the queue's own limits."""
    limits = {"lease_s": queue.limits.lease_ms / 1000, "max_depth": queue.limits.max_depth}
    values: dict[str, Any] = {
        "redis_url": redis_url,
        "queue": queue.keys.queue,
        "health_port": 0,
    } | limits
    return WorkerSettings(**(values | fields))


@dataclass
class LocalWorker:
    """A worker in this process, without signals and probes."""

    task: "asyncio.Task[EngineDied | None]"
    drain: Drain
    liveness: Liveness

    async def stop(self) -> EngineDied | None:
        """Drain; returns the death for which it gave up, if it did."""
        self.drain.start("test")
        return await self.task


@asynccontextmanager
async def local_worker(settings: WorkerSettings, engine: Engine) -> AsyncIterator[LocalWorker]:
    """Run a worker in this process for the length of a block; drained at its end."""
    drain = Drain(settings.drain_timeout_s)
    liveness = Liveness(settings.stall_timeout_s, 60, 60)
    supervisor = Supervisor(engine, settings, drain, liveness)
    task = asyncio.create_task(
        work(settings, supervisor, await supervisor.start(), drain, liveness)
    )
    worker = LocalWorker(task, drain, liveness)
    try:
        yield worker
    finally:
        drain.start("end of test")
        await asyncio.gather(task, return_exceptions=True)


@dataclass
class WorkerProcess:
    """A worker in a process of its own."""

    process: "subprocess.Popen[bytes]"
    port: int
    log: Path

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the log's events of a name."""
        rows = [
            orjson.loads(line)
            for line in self.log.read_bytes().splitlines()
            if line.startswith(b"{")
        ]
        return [row for row in rows if row["event"] == name]

    def probe(self, path: str) -> tuple[int, str]:
        """GET one of its probes; 0 while nothing listens."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}{path}", timeout=10
            ) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    async def until_ready(self) -> None:
        """Wait until it claims; fails if it ends before."""
        while (await asyncio.to_thread(self.probe, "/readyz"))[0] != 200:
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            await asyncio.sleep(0.05)

    def kill(self) -> None:
        """`kill -9`."""
        self.process.kill()
        self.process.wait()

    async def terminate(self) -> int:
        """SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(self.process.wait)


@asynccontextmanager
async def worker_process(
    command: Sequence[str],
    redis_url: str,
    queue: Queue,
    log: Path,
    argv: Sequence[str] = (),
    **environment: str,
) -> AsyncIterator[WorkerProcess]:
    """Run a worker process for the length of a block, until it is ready; gone at its end."""
    port = free_port()
    env: Mapping[str, str] = os.environ | {
        "REDIS_URL": redis_url,
        "GRISTMILL_QUEUE": queue.keys.queue,
        "GRISTMILL_LEASE_S": str(queue.limits.lease_ms / 1000),
        "GRISTMILL_HEALTH_PORT": str(port),
        **environment,
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, *argv],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509  # one C call, no locks
        )
    worker = WorkerProcess(process, port, log)
    try:
        await worker.until_ready()
        yield worker
    finally:
        if process.poll() is None:
            worker.kill()
