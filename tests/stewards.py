"""Stewards for the tests: processes of their own, to signal and to kill."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
from command_line import COMMAND
from redis import Redis
from rq.queue import Queue as RqQueue
from rq.serializers import JSONSerializer

from gristmill.local.processes import die_with_parent, free_port
from gristmill.producer.batches.batch_service import Batches
from gristmill.producer.batches.batch_spec import BatchSpec
from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.batches.settings import BatchSettings
from gristmill.producer.batches.upload import Upload

STUB = (sys.executable, str(Path(__file__).with_name("stub_steward.py")))
TRUE = (*COMMAND, "steward")

WAIT_S = 30.0


@dataclass
class StewardProcess:
    """A steward in a process of its own."""

    process: "subprocess.Popen[bytes]"
    port: int
    log: Path
    folder: Path = field(default_factory=Path)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The events of its log."""
        lines = self.log.read_bytes().splitlines()
        return [orjson.loads(line) for line in lines if line.startswith(b"{")]

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the events of a name."""
        return [row for row in self.rows if row["event"] == name]

    async def until(self, event: str, **fields: Any) -> dict[str, Any]:
        """Wait for an event with these fields; fails if the process ends before."""
        deadline = time.monotonic() + WAIT_S
        while True:
            for row in self.events(event):
                if fields.items() <= row.items():
                    return row
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            assert time.monotonic() < deadline, (event, self.log.read_text()[-3000:])
            await asyncio.sleep(0.02)

    def kill(self) -> None:
        """`kill -9`."""
        self.process.kill()
        self.process.wait()

    async def terminate(self, number: int = signal.SIGTERM) -> tuple[int, float]:
        """Send a signal; returns the exit code and the seconds it took."""
        began_s = time.monotonic()
        self.process.send_signal(number)
        code = await asyncio.to_thread(self.process.wait, WAIT_S)
        return code, time.monotonic() - began_s


def start_steward(
    command: Sequence[str], redis_url: str, queue: str, folder: Path, **environment: str
) -> StewardProcess:
    """Start a steward; its log and its storage lie in the folder."""
    port = free_port()
    env = os.environ | {
        "REDIS_URL": redis_url,
        "GRISTMILL_QUEUE": queue,
        "GRISTMILL_STORAGE_URL": str(folder / "storage"),
        "GRISTMILL_HEALTH_PORT": str(port),
        **environment,
    }
    log = folder / f"steward-{port}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command], stdout=output, stderr=subprocess.STDOUT, env=env,
            start_new_session=True, preexec_fn=die_with_parent,  # noqa: PLW1509  # one C call, no locks
        )  # fmt: skip
    return StewardProcess(process, port, log)


@asynccontextmanager
async def steward_process(
    command: Sequence[str],
    redis_url: str,
    queue: str,
    folder: Path,
    event: str = "steward.started",
    **environment: str,
) -> AsyncIterator[StewardProcess]:
    """Run a steward for the length of a block, from an event on; gone at its end."""
    steward = start_steward(command, redis_url, queue, folder, **environment)
    try:
        await steward.until(event)
        yield steward
    finally:
        if steward.process.poll() is None:
            steward.kill()


@dataclass
class Place:
    """Where a test works."""

    url: str
    queue: str
    folder: Path
    batches: Batches
    redis: Redis

    @property
    def rq(self) -> RqQueue:
        """The steward's RQ queue."""
        return RqQueue(f"gristmill-{self.queue}", self.redis, serializer=JSONSerializer)

    async def upload(self, content: bytes, tenant: str = "default") -> str:
        """Store a file; returns its id."""
        async with Upload(self.batches.files, tenant) as upload:
            upload.write(content)
            return (await upload.finish("input.jsonl")).id

    async def create(self, prompts: int = 1, tenant: str = "default") -> str:
        """Create a batch of so many prompts; returns its id."""
        lines = [
            {
                "custom_id": f"row-{n}", "method": "POST", "url": "/v1/completions",
                "body": {"model": "stub", "prompt": f"Say {n}.", "max_tokens": 4},
            }
            for n in range(prompts)
        ]  # fmt: skip
        file = await self.upload(b"".join(orjson.dumps(line) + b"\n" for line in lines), tenant)
        spec = BatchSpec(input_file_id=file, endpoint="/v1/completions")
        return (await self.batches.create(tenant, spec)).id

    async def notes(self, count: int) -> list[dict[str, Any]]:
        """Wait for so many notes of a stub's jobs; returns all there are."""
        key, deadline = f"{self.batches.store.queue.keys.prefix}notes", time.monotonic() + 30
        while len(lines := await self.batches.store.queue.redis.lrange(key, 0, -1)) < count:
            assert time.monotonic() < deadline, lines
            await asyncio.sleep(0.02)
        return [orjson.loads(line) for line in lines]


@asynccontextmanager
async def opened(url: str, folder: Path) -> AsyncIterator[Place]:
    """Open a queue of a new name."""
    queue = f"test-{uuid4().hex[:12]}"
    settings = BatchSettings(redis_url=url, queue=queue, storage_url=str(folder / "storage"))
    async with BatchStore.from_settings(settings) as store:
        redis = Redis.from_url(url)
        yield Place(url, queue, folder, Batches(store), redis)
        redis.close()
