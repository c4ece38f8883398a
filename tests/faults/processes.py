"""The processes of the fault suite: forked from a server that has imported everything, so one costs 20 ms.

A worker is the true one (`serve`: signals, lease, probes, drain) around a stub engine whose prompts say
what happens. A producer is the true client; it writes down what it was told, so that what clients saw can be
compared with what Redis holds.
"""

import asyncio
import ctypes
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import orjson

from gristmill.local.processes import die_with_parent
from gristmill.producer import Client
from gristmill.shared.connection import connect
from gristmill.shared.log import configure_logging
from gristmill.shared.queue import Queue
from gristmill.shared.redis_retry import announce_redis_waits
from gristmill.shared.request import COMPLETIONS, Request
from gristmill.worker.__main__ import serve
from gristmill.worker.engine import Engine, InProcessEngine, OnEvent, Response, StubEngine
from gristmill.worker.engine.remote import RemoteEngine
from gristmill.worker.settings import WorkerSettings

TOKEN_S = 0.01

KILLS_WORKER, KILLS_ENGINE, FAILS_ONCE, IS_WRONG, HOLDS_INTERPRETER, ANSWERS_TOO_MUCH, UNSERVED_AT_FIRST = (
    "kills-worker", "kills-engine", "fails-once", "is-wrong", "holds-interpreter", "answers-too-much",
    "unserved-at-first",
)  # fmt: skip
"""First words of prompts that are no plain ones."""

MAX_RESULT_BYTES = 16_384
"""Largest answer of a worker of the suite, so that byte bombs stay small."""

HOLD_S = 1.0
"""How long one holds the interpreter's lock: no beat, no probe, no loop."""


class FaultyEngine(StubEngine):
    """A stub that does what the first word of a prompt says, in the middle of the run."""

    def __init__(self) -> None:
        super().__init__(token_delay_s=TOKEN_S)
        self._has_failed: set[bytes] = set()

    async def post(
        self, endpoint: str, body: bytes, *, priority: int = 0, on_event: OnEvent | None = None
    ) -> Response:
        kind = str(orjson.loads(body)["prompt"]).partition(" ")[0]
        if kind == IS_WRONG:
            return Response(400, b'{"error":{"message":"wrong"}}')
        if kind == ANSWERS_TOO_MUCH:
            return Response(200, b'{"choices":[{"text":"%s"}]}' % (b"x" * MAX_RESULT_BYTES))
        if kind == HOLDS_INTERPRETER:
            ctypes.PyDLL(None).usleep(int(HOLD_S * 1e6))  # PyDLL keeps the lock
        if kind in (KILLS_WORKER, KILLS_ENGINE):
            await self._die_of(kind)
        response = await super().post(endpoint, body, priority=priority, on_event=on_event)
        if kind == FAILS_ONCE and body not in self._has_failed:
            self._has_failed.add(body)
            return Response(500, b'{"error":{"message":"once"}}')
        return response

    async def _die_of(self, kind: str) -> None:
        """Die in the middle of the run.

        The request waits for its own trap. Beside a timer, it could be answered first: after a stall, the stub
        makes up for the steps that it missed, and twenty of them take less than `TOKEN_S`.
        """
        await asyncio.sleep(TOKEN_S)
        if kind == KILLS_WORKER:
            os.kill(os.getpid(), signal.SIGKILL)
        self.die()


@dataclass(frozen=True)
class WorkerOrder:
    """What a worker process is told.

    Attributes:
        settings: Of the worker; with `vllm_url`, its engine is the server there.
        log: Where its output goes.
        clock_offset_s: How wrong its host's clock is.
        engine_argv: Of a true engine, in vLLM's flags; the stub without.
    """

    settings: dict[str, Any]
    log: Path
    clock_offset_s: float = 0.0
    engine_argv: tuple[str, ...] = ()


def run_worker(order: WorkerOrder) -> None:
    """Be a worker; the target of a forked process."""
    _begin(order.log)
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(0)
    )  # it holds nothing before it listens itself
    if order.clock_offset_s:
        true_time = time.time
        time.time = lambda: true_time() + order.clock_offset_s
    configure_logging()
    settings = WorkerSettings(**order.settings)
    sys.exit(asyncio.run(serve(settings, _engine(settings, order.engine_argv))))


def _engine(settings: WorkerSettings, argv: tuple[str, ...]) -> Engine:
    if settings.vllm_url:
        return RemoteEngine(settings.vllm_url)
    return InProcessEngine(argv) if argv else FaultyEngine()


@dataclass(frozen=True)
class Prompt:
    """One request of a schedule.

    Attributes:
        text: Its first word says what happens when it runs.
        max_tokens: How long it runs, in `TOKEN_S`.
        fields: More of `Request.from_body`: a start time, a deadline.
    """

    text: str
    max_tokens: int
    fields: dict[str, float] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The first word."""
        return self.text.partition(" ")[0]

    def request(self, request_id: str) -> Request:
        """Return the request."""
        body = {"prompt": self.text, "max_tokens": self.max_tokens, "ignore_eos": True}
        return Request.from_body(body, endpoint=COMPLETIONS, id=request_id, **self.fields)


@dataclass(frozen=True)
class ProducerOrder:
    """What a producer process is told.

    Attributes:
        redis_url: Where to submit.
        queue: Which queue.
        prompts: By id; a producer that starts over submits the same.
        journal: Takes a line of JSON for each submit that was accepted and each result that was seen.
        log: Where its output goes.
    """

    redis_url: str
    queue: str
    prompts: dict[str, Prompt]
    journal: Path
    log: Path


def run_producer(order: ProducerOrder) -> None:
    """Submit, wait for every result, write both down; the target of a forked process."""
    _begin(order.log)
    announce_redis_waits("", interval_s=1, tell=partial(print, flush=True))  # its log
    asyncio.run(_produce(order))


async def _produce(order: ProducerOrder) -> None:
    requests = [prompt.request(request_id) for request_id, prompt in order.prompts.items()]
    queue = Queue(connect(order.redis_url, 5), order.queue)
    with order.journal.open("ab", buffering=0) as journal:
        async with Client(queue=queue) as client:
            for start in range(0, len(requests), 10):
                ids = await client.submit_many(requests[start : start + 10])
                journal.write(orjson.dumps({"accepted": ids}) + b"\n")
            async for result in client.as_completed([request.id for request in requests]):
                seen = {"seen": result.id, "status": result.status, "pid": os.getpid()}
                journal.write(orjson.dumps(seen) + b"\n")


@dataclass
class Journal:
    """What all lives of one producer were told."""

    accepted: set[str] = field(default_factory=set)
    seen: dict[tuple[int, str], list[str]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "Journal":
        """Read it; a last line that a kill has cut short does not count."""
        journal = cls()
        for line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
            if not line.endswith(b"\n"):
                continue
            entry = orjson.loads(line)
            if "accepted" in entry:
                journal.accepted.update(entry["accepted"])
            else:
                key = (entry["pid"], entry["seen"])
                journal.seen.setdefault(key, []).append(entry["status"])
        return journal


def _begin(log: Path) -> None:
    die_with_parent()
    with log.open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.setsid()


@cache
def _context() -> Any:
    """The fork server imports this module once; it finds the tests through PYTHONPATH."""
    paths = [*sys.path, os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path for path in paths if path))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["faults.processes"])
    return context


def spawn(target: Callable[[Any], None], order: object) -> BaseProcess:
    """Start a process; `target` is `run_worker` or `run_producer`."""
    process: BaseProcess = _context().Process(target=target, args=(order,))
    process.start()
    return process


async def ended(process: BaseProcess) -> int:
    """Wait for the end of a process; returns its exit code, negative for the signal that killed it."""
    is_over = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(process.sentinel, is_over.set)
    try:
        await is_over.wait()
    finally:
        loop.remove_reader(process.sentinel)
    process.join()
    assert process.exitcode is not None
    return process.exitcode
