"""The real command `gristmill` as a subprocess, and a worker reduced to claim and ack."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson

from gristmill.shared.connection import connect
from gristmill.shared.operations import Settlement
from gristmill.shared.queue import Queue
from gristmill.shared.records import Claimed
from gristmill.shared.results import response_outcome

Answer = Callable[[str, Any], Any]

COMMAND = (sys.executable, "-m", "gristmill.shared.cli")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [orjson.loads(line) for line in self.out.splitlines()]


@dataclass(frozen=True, slots=True)
class CommandLine:
    """Runs commands against one queue."""

    redis_url: str
    queue: str
    folder: Path

    @property
    def environment(self) -> Mapping[str, str]:
        return os.environ | {"REDIS_URL": self.redis_url, "GRISTMILL_QUEUE": self.queue}

    def run(self, *arguments: str, stdin: bytes = b"", **environment: str) -> Ended:
        """Run a command to its end; only for what no worker has to answer meanwhile."""
        ended = subprocess.run(
            [*COMMAND, *arguments],
            input=stdin,
            capture_output=True,
            env={**self.environment, **environment},
            cwd=self.folder,
            check=False,
        )
        return Ended(ended.returncode, ended.stdout.decode(), ended.stderr.decode())

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *COMMAND,
            *arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
            cwd=self.folder,
        )

    async def finish(self, *arguments: str) -> Ended:
        """Run a command to its end while this process works on."""
        return await ended(await self.start(*arguments))

    def write(self, name: str, lines: list[Any]) -> str:
        """Write a JSONL file; returns its name."""
        raw = [line if isinstance(line, bytes) else orjson.dumps(line) for line in lines]
        (self.folder / name).write_bytes(b"".join(line + b"\n" for line in raw))
        return name

    def rows(self, name: str) -> list[dict[str, Any]]:
        return [orjson.loads(line) for line in (self.folder / name).read_bytes().splitlines()]

    @asynccontextmanager
    async def open_queue(self) -> AsyncIterator[Queue]:
        redis = connect(self.redis_url)
        try:
            yield Queue(redis, self.queue)
        finally:
            await redis.aclose()


async def ended(process: asyncio.subprocess.Process) -> Ended:
    """Wait for a started command."""
    out, err = await process.communicate()
    assert process.returncode is not None
    return Ended(process.returncode, out.decode(), err.decode())


async def interrupt(process: asyncio.subprocess.Process, number: int = signal.SIGINT) -> Ended:
    """Send a signal to a started command and wait for it."""
    process.send_signal(number)
    return await ended(process)


class SettlingWorker:
    """Claims and answers requests, without an engine.

    Args:
        queue: Where from.
        answer: Returns the answer to a request by its id and body, or None to hold it; None repeats prompts.
        facts: Facts that it registers, such as its models.

    Attributes:
        answered: Ids of the answered requests.
        held: Requests that are claimed and not answered.
    """

    def __init__(
        self,
        queue: Queue,
        answer: Answer | None = None,
        facts: Mapping[str, str | int] | None = None,
    ) -> None:
        self._queue = queue
        self._facts = {"pid": os.getpid(), **(facts or {})}
        self._answer = answer
        self._is_stopping = False
        self.answered: list[str] = []
        self.held: list[Claimed] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator["SettlingWorker"]:
        task = asyncio.create_task(self._run())
        try:
            yield self
        finally:
            self._is_stopping = True  # a cancellation can get lost in redis-py on Python 3.11
            await task

    async def settle(self, count: int) -> list[str]:
        """Claim at most `count` requests, or what there is, and answer them."""
        claim = await self._queue.claim("worker", uuid4().hex, count)
        await self._settle(claim.claimed)
        return [claimed.id for claimed in claim.claimed]

    async def release(self) -> None:
        """Answer what is held."""
        held, self.held = self.held, []
        await self._settle(held)

    async def _settle(self, some: Sequence[Claimed]) -> None:
        settlements = [(each, self._settlement(each)) for each in some]
        self.held += [each for each, settlement in settlements if settlement is None]
        done = [settlement for _, settlement in settlements if settlement is not None]
        await self._queue.ack("worker", done)
        self.answered += [settlement.id for settlement in done]

    def _settlement(self, claimed: Claimed) -> Settlement | None:
        if self._answer is None:
            return _settlement(claimed)
        answer = self._answer(claimed.id, orjson.loads(claimed.record.body))
        if answer is None:
            return None
        outcome = response_outcome(1, "worker", 200, orjson.dumps(answer))
        return Settlement(claimed.id, claimed.delivery, "succeeded", outcome, fence=claimed.fence)

    async def register(self) -> None:
        await self._queue.register("worker", self._facts)

    async def _run(self) -> None:
        await self.register()
        while not self._is_stopping:
            await self._queue.beat("worker")
            if not await self.settle(16):
                await self._queue.redis.blpop([self._queue.keys.doorbell], timeout=0.05)


def _settlement(claimed: Claimed) -> Settlement:
    body = orjson.loads(claimed.record.body)
    if body.get("prompt") == "fail":
        outcome = response_outcome(1, "worker", 400, b'{"error":{"message":"told to fail"}}')
        return Settlement(claimed.id, claimed.delivery, "failed", outcome, fence=claimed.fence)
    if str(body.get("prompt")).startswith("answer "):
        raw = body["prompt"].removeprefix("answer ").encode()
        outcome = response_outcome(1, "worker", 200, raw)
        return Settlement(claimed.id, claimed.delivery, "succeeded", outcome, fence=claimed.fence)
    answer = {"choices": [{"text": str(body.get("prompt"))}], "usage": {"completion_tokens": 3}}
    outcome = response_outcome(1, "worker", 200, orjson.dumps(answer))
    return Settlement(claimed.id, claimed.delivery, "succeeded", outcome, fence=claimed.fence)
