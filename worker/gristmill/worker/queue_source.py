"""One queue's way into the engine: a lease of its own, what is held under it, its claims and its records.

A worker has one for each of its queues, and one engine for all. The loop (`loop.py`) opens and stops them,
and tells them of the engine's deaths; the lease's thread tells them what happened in the queue.
"""

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog
from redis.exceptions import RedisError
from ulid import ULID

from gristmill.shared.connection import retrying
from gristmill.shared.errors import EngineDied, LeaseLost
from gristmill.shared.operations import Claim, Stats
from gristmill.shared.queue import Queue
from gristmill.shared.tasks import end
from gristmill.worker import metrics
from gristmill.worker.admission.room import Admission
from gristmill.worker.claiming import Claimer
from gristmill.worker.drain import Drain
from gristmill.worker.engine import Engine
from gristmill.worker.in_flight import Held, Running
from gristmill.worker.lease import LeaseEvents, LeaseKeeper
from gristmill.worker.liveness import Progress
from gristmill.worker.redis_memory import should_pause_claims
from gristmill.worker.reports import report_queue
from gristmill.worker.runner import Runner
from gristmill.worker.settings import WorkerSettings

log = structlog.get_logger()

STOP_TIMEOUT_S = 10.0
"""Longest wait for Redis to take back what is left; after it the lease runs out by itself."""


def new_worker_name() -> str:
    """Return the name of a new incarnation; no other ever has it."""
    return f"{socket.gethostname()[:48]}-{ULID()}"


class Feed:
    """Feeds an engine from one queue.

    Args:
        open_queue: Opens the queue on connections of its own.
        weight: The queue's share beside the others.
        engine: Runs the requests.
        running: Counts what the engine runs.
        settings: Backoff and limits.
        admission: Told what goes into the engine, and what it took.
        drain: Ends the pauses.
        progress: Told of each answer of Redis.
        facts: What the worker serves, for `worker:<worker>`.
        died: Told that the engine died.

    Attributes:
        held: The queue's requests in this process.
        claimer: Claims from the queue.
        runner: Runs and settles what was claimed.
    """

    def __init__(
        self,
        open_queue: Callable[[], Queue],
        weight: int,
        engine: Engine,
        running: Running,
        settings: WorkerSettings,
        *,
        admission: Admission,
        drain: Drain,
        progress: Progress,
        facts: Mapping[str, str | int],
        died: Callable[[EngineDied], None],
    ) -> None:
        self.weight = weight
        self._queue = open_queue()
        self._running = running
        self._progress = progress
        self._facts = facts
        self._policy = settings.policy
        self._registering = asyncio.Lock()
        self._opening: asyncio.Task[None] | None = None
        self._evidence: Mapping[str, Any] | None = None  # of a death that is not reported yet
        self.held = Held(running)
        self.claimer = Claimer(self._queue, settings, self.held, running.pace)
        self.runner = Runner(
            self._queue,
            engine,
            self.held,
            settings,
            drain,
            admission=admission,
            pace=running.pace,
            died=died,
            suspect_ended=running.widen,
        )
        events = LeaseEvents(
            aborted=self._abort,
            lost=lambda worker: asyncio.ensure_future(self._lease_lost(worker)),
            counted=self._compare,
            seen=self._see,
        )
        self._leases = LeaseKeeper(open_queue, settings.beat_interval_s, progress, events)

    async def open(self) -> None:
        """Open the lease, and begin to renew it."""
        await self._register()
        self._leases.start()

    async def claim(self, size: int, max_tokens: int, suspect_width: int) -> Claim:
        """Claim once, under a new name if the lease is lost; see `Claimer.claim`."""
        while True:
            try:
                return await self.claimer.claim(size, max_tokens, suspect_width)
            except LeaseLost as lost:
                await self._lease_lost(lost.worker)

    async def settle_doubt(self) -> None:
        """Hand back what only the queue believes to be held, if it seems to; call it between claims."""
        if self.claimer.is_in_doubt:
            await self.claimer.give_back_unknown(self.claimer.worker)

    # -- the engine's death and the worker's end -----------------------------------------------------

    def note_death(self, evidence: Mapping[str, Any]) -> None:
        """Take in that the engine died; what is in flight is to be given up."""
        self._evidence = {**evidence, "worker": self.claimer.worker}

    async def give_up(self) -> None:
        """Report the engine's death: what was in flight becomes suspect, what waited is handed back."""
        if self._evidence is None:
            return
        evidence = self._evidence
        await self.runner.settler.flushed()
        runs = self.held.runs
        await self.runner.release([run for run in runs if run.task is None])
        worker, moved = self.claimer.worker, -1
        await self.claimer.give_back_unknown(worker)  # claimed a moment ago, never run
        while moved:
            moved, killed = await retrying(lambda: self._queue.crash(worker, evidence))
            for request_id in killed:
                queue = self._queue.keys.queue
                log.error(
                    "request.dead_lettered", queue=queue, id=request_id, reason="engine_killed"
                )
        self.held.forget([run.claimed for run in runs])
        self._evidence = None

    async def stop(self) -> None:
        """Hand back what is left and close the lease, or leave it to run out."""
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._let_go()
        except (TimeoutError, RedisError):
            log.exception(
                "worker.left_requests",
                queue=self._queue.keys.queue,
                num_left=len(self.held.runs),
                remedy="wait for the lease's end",
            )

    async def close(self) -> None:
        """Close the connections; nothing is claimed or settled any more."""
        await end(self._opening)
        await self._leases.stop()
        await self._queue.redis.aclose()

    async def _let_go(self) -> None:
        if self._opening is None:  # told to stop before there was a lease
            return
        await self._opening  # a lease that opened after this would stay
        await self.runner.settler.flushed()
        await self.give_up()
        runs = self.held.runs
        await self.runner.release(runs)
        async with self._registering:  # from here on, a beat that finds no lease is no news
            worker, self.claimer.worker = self.claimer.worker, ""
        while not await retrying(lambda: self._queue.bye(worker)):
            await self.claimer.give_back_unknown(worker)
        log.info(
            "worker.stopped", worker=worker, queue=self._queue.keys.queue, num_released=len(runs)
        )

    # -- the lease, and what its thread tells --------------------------------------------------------

    async def _register(self) -> None:
        """Open a lease; once begun it goes on, whoever is cancelled, so that `stop` can close it."""
        self._opening = asyncio.create_task(self._open_lease())
        await asyncio.shield(self._opening)

    async def _open_lease(self) -> None:
        """Open a lease under a new name; nothing is claimed under it before it is open."""
        worker = new_worker_name()
        await retrying(lambda: self._queue.register(worker, self._facts, self._policy))
        self.claimer.worker = worker
        self._leases.follow(worker)
        self._progress.heard_redis()
        log.info(
            "worker.registered",
            worker=worker,
            queue=self._queue.keys.queue,
            weight=self.weight,
            max_in_flight=self._facts["max_in_flight"],
        )

    async def _lease_lost(self, worker: str) -> None:
        """Start over under a new name: everything held has been given to others."""
        async with self._registering:
            if worker != self.claimer.worker:
                return
            runs = self.held.runs
            queue = self._queue.keys.queue
            log.error("lease.lost", queue=queue, worker=worker, num_held=len(runs))
            metrics.leases_lost.inc()
            self._abort([run.claimed.id for run in runs])
            await self._register()

    def _abort(self, ids: Sequence[str]) -> None:
        """Abort requests that ended elsewhere: cancelled, expired or finished by another worker."""
        runs = self.held.take(ids)
        self.held.cancel(runs)
        metrics.aborted.inc(len(runs))
        ids = [run.claimed.id for run in runs]
        log.info("requests.aborted", queue=self._queue.keys.queue, ids=ids)

    def _compare(self, num_in_flight: int) -> None:
        """Look into it if the queue believes that this worker holds more than it does."""
        if num_in_flight > len(self.held.runs):
            self.claimer.is_in_doubt = True
            self._running.changed.set()

    def _see(self, stats: Stats) -> None:
        """Take in one view of the queue."""
        queue = self._queue.keys.queue
        report_queue(queue, stats)
        is_paused = should_pause_claims(stats)
        if is_paused != self.claimer.is_paused:
            log.warning(
                "claims.paused" if is_paused else "claims.resumed",
                queue=queue,
                used_memory=stats.used_memory,
                max_memory=stats.max_memory,
                remedy="read results and let them expire sooner, or raise maxmemory",
            )
            metrics.claims_paused.labels(queue).set(is_paused)
            self.claimer.is_paused = is_paused
            self._running.changed.set()
        if is_paused:  # one a beat, so that no pause lasts for ever
            self.claimer.allowance = 1
            self._running.changed.set()
