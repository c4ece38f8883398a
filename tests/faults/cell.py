"""One cell: a Redis, the processes around it, each behind a proxy of its own, and the audit at the end."""

import asyncio
import contextlib
import inspect
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from faults.foreign import Foreign
from faults.processes import (
    MAX_RESULT_BYTES,
    ProducerOrder,
    Prompt,
    WorkerOrder,
    ended,
    run_producer,
    run_worker,
    spawn,
)
from faults.proxy import Fate, Proxy, Trap
from faults.redis_server import RedisServer
from faults.schedule import BYTE_BOMBS, LEASE_S, LOST_LEASES, REDIS_FAULTS, WRONG_TYPES, Fault
from faults.server import faulty_server

from gristmill.local.redis_server import server_binary
from gristmill.shared.operations import Limits
from gristmill.shared.queue import Queue
from gristmill.shared.redis_retry import retrying
from gristmill.shared.tasks import end

Step = Callable[[], object]

REDIS = shutil.which("redis-server")
BINARIES = [server_binary(), *([Path(REDIS)] if REDIS else [])]
"""Valkey, and Redis where there is one."""

RESTART_PAUSE_S = 0.1
SOCKET_TIMEOUT_S = 1.0
BOOT_S = 2.0
"""Time in which a new process may not listen to SIGTERM yet; it holds nothing then."""

WORKER_SETTINGS: dict[str, Any] = {
    "health_port": 0,
    "lease_s": LEASE_S,
    "beat_s": LEASE_S / 4,
    "poll_interval_s": 0.1,
    "socket_timeout_s": SOCKET_TIMEOUT_S,
    "backoff_base_s": 0.02,
    "backoff_max_s": 0.1,
    "drain_timeout_s": 0.3,
}

SMALL_LIMITS = {
    "max_request_bytes": 65_536, "max_result_bytes": MAX_RESULT_BYTES, "max_in_flight_bytes": 65_536,
}  # fmt: skip
"""Settings under which byte bombs are small: two large bodies do not fit into one worker."""


class Pod:
    """A process that is started again whenever it ends, as kubelet does, until it is told to stop.

    Args:
        proxy: Its way to Redis.
        start: Starts a life of it.
        is_job: Whether an exit code of 0 is the end, as of a producer.

    Attributes:
        process: Its present life.
        exit_codes: Of the lives that are over.
        living: Done when no life follows.
    """

    def __init__(self, proxy: Proxy, start: Callable[[], BaseProcess], *, is_job: bool) -> None:
        self.proxy = proxy
        self._start, self._is_job, self._is_stopping = start, is_job, False
        self.exit_codes: list[int] = []
        self.process = start()
        self._started_at = time.monotonic()
        self.living = asyncio.create_task(self._live())

    def signal(self, number: int) -> None:
        """Send a signal to the present life, if it lives."""
        if self.process.pid and self.process.exitcode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    async def stop(self) -> int:
        """Drain it; returns the exit code of its last life."""
        self._is_stopping = True
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        is_young = time.monotonic() - self._started_at < BOOT_S
        await self.living
        code = self.exit_codes[-1]
        return 0 if is_young and code == -signal.SIGTERM else code

    async def close(self) -> None:
        """End it at once."""
        await end(self.living)
        self.signal(signal.SIGKILL)
        await asyncio.to_thread(self.process.join)

    async def _live(self) -> None:
        while True:
            code = await ended(self.process)
            self.exit_codes.append(code)
            if self._ends_with(code):
                return
            await asyncio.sleep(RESTART_PAUSE_S)
            if self._ends_with(code):  # told to stop meanwhile
                return
            self.process = self._start()
            self._started_at = time.monotonic()

    def _ends_with(self, code: int) -> bool:
        return self._is_stopping or (code == 0 and self._is_job)


class Cell:
    """Where schedules and directed tests run; open it with `open_cell`.

    Attributes:
        redis: The server.
        queue: The queue, past all proxies.
        foreign: Who writes to the queue's keys past its verbs.
        folder: Logs and journals.
        workers: Pods of workers.
        producer: The pod of the producer, once there is one.
    """

    def __init__(self, redis: RedisServer, folder: Path, stack: AsyncExitStack) -> None:
        self.redis, self.folder = redis, folder
        self._stack = stack
        # Of its own: on a port that was another cell's, that cell's processes must find nothing of theirs.
        self.queue = Queue(
            redis.admin, f"faults-{redis.port}", Limits(lease_ms=int(LEASE_S * 1000))
        )
        self.foreign = Foreign(self.queue)
        self.workers: list[Pod] = []
        self.producer: Pod | None = None
        self.journal = folder / "journal"
        self._one_at_a_time = asyncio.Lock()  # Redis has one trouble at a time

    async def add_worker(
        self, *, clock_offset_s: float = 0.0, engine_argv: tuple[str, ...] = (), **settings: object
    ) -> Pod:
        """Start a worker; see `WorkerOrder`."""
        proxy = await self._stack.enter_async_context(Proxy(self.redis.port))
        order = WorkerOrder(
            WORKER_SETTINGS | {"redis_url": proxy.url, "queue": self.queue.keys.queue} | settings,
            self.folder / f"worker{len(self.workers)}",
            clock_offset_s,
            engine_argv,
        )
        pod = Pod(proxy, partial(spawn, run_worker, order), is_job=False)
        self._stack.push_async_callback(pod.close)
        self.workers.append(pod)
        return pod

    async def add_server(self) -> str:
        """Start a server that fails for some; returns its URL, for `vllm_url` of workers."""
        return await self._stack.enter_async_context(faulty_server())

    async def add_producer(self, prompts: dict[str, Prompt]) -> Pod:
        """Start a producer of these requests; its pod is done when it has seen all results."""
        proxy = await self._stack.enter_async_context(Proxy(self.redis.port))
        log = self.folder / "producer"
        order = ProducerOrder(proxy.url, self.queue.keys.queue, prompts, self.journal, log)
        self.producer = Pod(proxy, partial(spawn, run_producer, order), is_job=True)
        self._stack.push_async_callback(self.producer.close)
        return self.producer

    async def until(self, counter: str, number: int) -> None:
        """Wait until a counter of the queue has reached a number."""
        while (await retrying(self.queue.stats)).counters.get(counter, 0) < number:
            await asyncio.sleep(0.005)

    async def until_inbox_is_empty(self) -> None:
        """Wait until workers have taken each element of the inbox."""
        while (await retrying(self.queue.stats)).num_inbox:
            await asyncio.sleep(0.02)

    async def inflict(self, fault: Fault) -> None:
        """Let a fault happen at its moment, or lay a trap for it."""
        await asyncio.sleep(fault.at_s)
        pod = self.workers[fault.target] if fault.target >= 0 else self.producer
        assert pod is not None
        happen = self._happening(fault, pod)
        if fault.point is None:
            await happen()
            return
        point = fault.point
        pod.proxy.traps.append(Trap(point.verb, point.phase, point.nth, happen))

    def _happening(self, fault: Fault, pod: Pod) -> Callable[[], Awaitable[Fate]]:
        redis, proxy = self.redis, pod.proxy
        beginnings: dict[str, tuple[Step, Step]] = {
            "kill -9": (lambda: pod.signal(signal.SIGKILL), _nothing),
            "SIGTERM": (lambda: pod.signal(signal.SIGTERM), _nothing),
            "SIGSTOP past the lease": (
                lambda: pod.signal(signal.SIGSTOP),
                lambda: pod.signal(signal.SIGCONT),
            ),
            "connection cut": (_nothing if fault.point else proxy.cut, _nothing),
            "reply lost": (_nothing, _nothing),
            "half-open connection": (proxy.flows.clear, proxy.flows.set),
            "slow connection": (partial(proxy.slow_down, 0.05), partial(proxy.slow_down, 0.0)),
            "Redis restart": (redis.kill, redis.start),
            "Redis stalls": (redis.pause, redis.resume),
            "CLIENT KILL": (redis.drop_connections, _nothing),
            "SCRIPT FLUSH": (redis.forget_scripts, _nothing),
            "maxmemory": (redis.fill, redis.empty),
            "MISCONF": (redis.fail_snapshots, redis.mend_snapshots),
            "READONLY": (redis.demote, redis.promote),
            BYTE_BOMBS: (self.foreign.throw_bombs, _nothing),
            WRONG_TYPES: (self.foreign.push_to_keys, _nothing),
            LOST_LEASES: (lambda: self.foreign.end_leases(pod.process.pid or 0), _nothing),
        }
        begin, mend = beginnings[fault.kind]
        is_of_redis = fault.kind in REDIS_FAULTS
        is_swallowed = fault.point and fault.kind in ("connection cut", "reply lost")

        async def happen() -> Fate:
            async with self._one_at_a_time if is_of_redis else contextlib.nullcontext():
                await _done(begin())
                try:
                    await asyncio.sleep(0 if mend is _nothing else fault.duration_s)
                finally:  # also when the connection that it happens on is cut
                    await _done(mend())
            return "swallow" if is_swallowed else "pass"

        return happen


@asynccontextmanager
async def open_cell(
    binary: Path, folder: Path, appendfsync: str = "everysec"
) -> AsyncIterator[Cell]:
    """Start a Redis and make a cell around it; everything is gone at the end of the block."""
    redis = RedisServer(binary, folder, appendfsync)
    async with AsyncExitStack() as stack:
        await redis.start()
        stack.push_async_callback(redis.close)
        yield Cell(redis, folder, stack)


def _nothing() -> None:
    """The other half of what does not last."""


async def _done(step: object) -> None:
    if inspect.isawaitable(step):
        await step
