"""One queue that a worker serves: its lease, its claims, and what is in flight from it.

A worker has one source for each of its queues, and one engine for all of them. The batcher claims through it;
the loop starts and stops it and tells it of the engine's death. `lease.py` and `heartbeat.py` keep the lease.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog
from redis.exceptions import RedisError
from ulid import ULID

from gristmill.shared.chunking import chunks
from gristmill.shared.errors import LeaseLost
from gristmill.shared.operations import MAX_CLAIM, Claim, Settlement, Stats, SuspectRoom
from gristmill.shared.queue import Queue
from gristmill.shared.redis_retry import retrying
from gristmill.shared.tasks import end
from gristmill.worker import metrics
from gristmill.worker.ack_writer import AckWriter
from gristmill.worker.admission.room import Demand
from gristmill.worker.context import WorkerContext
from gristmill.worker.heartbeat import Heartbeat, HeartbeatEvents
from gristmill.worker.in_flight import ClaimResult, InFlight, cancel
from gristmill.worker.inbox import admit_element
from gristmill.worker.lease import Lease
from gristmill.worker.redis_memory import ClaimPause
from gristmill.worker.reports import report_queue

log = structlog.get_logger()

STOP_TIMEOUT_S = 10.0
"""Longest wait for Redis to take back what is left; after it the lease runs out by itself."""


class QueueSource:
    """Feeds an engine from one queue.

    Args:
        open_queue: Opens the queue on connections of its own.
        weight: The queue's share beside the worker's others.
        context: The worker.

    Attributes:
        weight: As given.
        demand: What the queue had left after the last claim.
        failed: Fails when finished requests can no longer be written; it never has a result.
    """

    def __init__(
        self, open_queue: Callable[[], Queue], weight: int, context: WorkerContext
    ) -> None:
        self.weight = weight
        self.demand = Demand()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._context = context
        self._queue = open_queue()
        self._name = self._queue.keys.queue
        self._in_flight = InFlight(self._queue, context.load)
        self._acks = AckWriter(
            self._queue,
            self._in_flight.finished,
            written=self._written,
            may_grow=lambda: (
                self._in_flight.num_running > 1
            ),  # the one that just ended still counts
        )
        events = HeartbeatEvents(
            aborted=self._abort,
            lost=lambda worker: asyncio.ensure_future(self._lease.replace(worker)),
            in_flight_counted=self._check_in_flight,
            stats_read=self._take_stats,
        )
        beat_s = context.settings.beat_interval_s
        self._heartbeat = Heartbeat(open_queue, beat_s, context.liveness, events)
        self._lease = Lease(
            self._queue,
            context.facts,
            context.settings.scheduling_policy,
            opened=self._lease_opened,
            lost=self._abort_all,
        )
        self._writing: asyncio.Task[None] | None = None
        self._pause = ClaimPause(self._name)
        self._is_in_doubt = False  # the queue may believe that this worker holds more than it does
        self._death: Mapping[str, Any] | None = None  # evidence that is not reported yet

    @property
    def has_suspects(self) -> bool:
        """Whether a request is held that was in flight when an engine or a worker died."""
        return bool(self._in_flight.suspects)

    @property
    def num_started(self) -> int:
        """Requests that were started on the engine and are not settled yet."""
        return sum(request.task is not None for request in self._in_flight.requests)

    async def start(self) -> None:
        """Open the lease, and begin to renew it and to write what ends."""
        self._writing = asyncio.create_task(self._acks.run())
        self._writing.add_done_callback(self._writing_ended)
        await self._lease.open()
        self._heartbeat.start()

    # -- claims --------------------------------------------------------------------------------------

    async def claim(self, size: int, max_tokens: int, suspect_width: int) -> ClaimResult | None:
        """Claim once, and admit what the inbox had; under a new name if the lease is lost.

        The claim is repeated under one nonce until Redis answers, so a lost reply loses nothing.

        Args:
            size: Requests that the claim may take, from 1.
            max_tokens: Tokens of all of them together, by the headers' estimates.
            suspect_width: Suspects of this queue that may run at the same time.

        Returns:
            What the claim brought, or None if claims pause because Redis is nearly full.
        """
        size = self._pause.granted(size)
        if size == 0:
            return None
        while True:
            worker = self._lease.worker
            try:
                claim = await self._claim(worker, size, max_tokens, suspect_width)
            except LeaseLost as lost:
                await self._lease.replace(lost.worker)
            else:
                break
        self.demand = Demand(claim.num_queued, claim.num_workers)
        requests = self._in_flight.add(claim, worker)
        max_bytes = self._context.settings.max_request_bytes
        for token, element in claim.inbox:
            await admit_element(self._queue, worker, token, element, max_bytes)
        due_ms = claim.next_due_ms
        return ClaimResult(
            requests, bool(claim.inbox), None if due_ms is None else (due_ms - claim.now_ms) / 1000
        )

    async def resolve_doubt(self) -> None:
        """Release requests that the queue counts as ours and we do not have; call it between claims."""
        if self._is_in_doubt:
            await self._release_unknown(self._lease.worker)

    async def hear_doorbell(self, timeout_s: float) -> None:
        """Wait until the doorbell rings, or for the timeout."""
        try:
            await self._queue.redis.blpop([self._queue.keys.doorbell], timeout=max(0.01, timeout_s))
        except (RedisError, OSError):
            await asyncio.sleep(timeout_s)  # away; the next claim waits for its return

    async def _claim(self, worker: str, size: int, max_tokens: int, suspect_width: int) -> Claim:
        nonce, suspects = str(ULID()), self._in_flight.suspects
        runs_alone = any(request.claimed.crashes > 1 for request in suspects)
        max_suspects = 0 if runs_alone else max(0, suspect_width - len(suspects))
        return await retrying(
            lambda: self._queue.claim(
                worker,
                nonce,
                size,
                max_tokens=max_tokens,
                suspects=SuspectRoom(max_suspects, bool(suspects)),
                ms_per_token=self._context.load.token_time.ms_per_token,
            )
        )

    async def _release_unknown(self, worker: str) -> None:
        """Hand back what the queue believes that this worker holds, and it does not.

        A Redis that lost its last writes (power failure, failover) has forgotten settlements; a claim
        that was cancelled may have been granted. Call it while no claim is under way.
        """
        self._is_in_doubt = False
        in_flight = await retrying(lambda: self._queue.in_flight(worker))
        known = {(each.id, each.claimed.delivery) for each in self._in_flight.requests}
        unknown = [delivery for delivery in in_flight if delivery not in known]
        for chunk in chunks(unknown, MAX_CLAIM):
            await retrying(lambda c=chunk: self._queue.release(worker, c))  # type: ignore[misc]  # bound now
        if unknown:
            log.warning(
                "requests.unknown", queue=self._name, worker=worker, num_released=len(unknown)
            )

    # -- the engine's death and the worker's end -----------------------------------------------------

    def cancel_running(self) -> "list[asyncio.Task[None]]":
        """Abort in the engine all that runs; return the tasks that are about to end."""
        return cancel(self._in_flight.requests)

    def note_death(self, evidence: Mapping[str, Any]) -> None:
        """Take in that the engine died; `report_death` tells the queue."""
        self._death = {**evidence, "worker": self._lease.worker}

    async def report_death(self) -> None:
        """Tell the queue of the engine's death: what was in flight becomes suspect, what waited is handed back."""
        if self._death is None:
            return
        evidence = self._death
        await self._in_flight.finished.join()
        requests = self._in_flight.requests
        await self._in_flight.release([request for request in requests if request.task is None])
        worker, moved = self._lease.worker, -1
        await self._release_unknown(worker)  # claimed a moment ago, never run
        while moved:
            moved, killed = await retrying(lambda: self._queue.crash(worker, evidence))
            for request_id in killed:
                log.error(
                    "request.dead_lettered",
                    queue=self._name,
                    id=request_id,
                    reason="engine_killed",
                )
        self._in_flight.forget([request.claimed for request in requests])
        self._death = None

    async def stop(self) -> None:
        """Hand back what is left and close the lease and the connections.

        A Redis that is away for longer than `STOP_TIMEOUT_S` leaves the lease to run out.
        """
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._release_all()
        except (TimeoutError, RedisError):
            log.exception(
                "worker.left_requests",
                queue=self._name,
                num_left=len(self._in_flight.requests),
                remedy="wait for the lease's end",
            )
        finally:
            await end(self._writing)
            await self._lease.abandon()
            await self._heartbeat.stop()
            await self._queue.redis.aclose()

    async def _release_all(self) -> None:
        if not self._lease.was_opened:  # told to stop before there was a lease
            return
        await self._lease.finish_opening()
        await self._in_flight.finished.join()
        await self.report_death()
        requests = self._in_flight.requests
        await self._in_flight.release(requests)
        worker = await self._lease.close(self._release_unknown)
        log.info("worker.stopped", worker=worker, queue=self._name, num_released=len(requests))

    # -- what other parts tell -----------------------------------------------------------------------

    def _lease_opened(self, worker: str) -> None:
        self._heartbeat.follow(worker)
        self._context.liveness.heard_redis()
        log.info(
            "worker.registered",
            worker=worker,
            queue=self._name,
            weight=self.weight,
            max_in_flight=self._context.facts["max_in_flight"],
        )

    def _written(self, settlements: Sequence[Settlement]) -> None:
        self._in_flight.forget(settlements)
        self._context.load.num_settled += len(settlements)
        metrics.settling.dec(len(settlements))

    def _writing_ended(self, writing: "asyncio.Task[None]") -> None:
        if not writing.cancelled() and not self.failed.done():
            self.failed.set_exception(writing.exception() or RuntimeError("acks ended"))

    def _abort_all(self) -> int:
        """Abort everything: the lease is lost, and others have it."""
        requests = self._in_flight.requests
        self._abort([request.id for request in requests])
        return len(requests)

    def _abort(self, ids: Sequence[str]) -> None:
        """Abort requests that ended elsewhere: cancelled, expired or finished by another worker."""
        aborted = self._in_flight.abort(ids)
        metrics.aborted.inc(len(aborted))
        log.info("requests.aborted", queue=self._name, ids=aborted)

    def _check_in_flight(self, num_in_flight: int) -> None:
        """Look into it if the queue believes that this worker holds more than it does."""
        if num_in_flight > len(self._in_flight.requests):
            self._is_in_doubt = True
            self._context.load.changed.set()

    def _take_stats(self, stats: Stats) -> None:
        report_queue(self._name, stats)
        if self._pause.take(stats):
            self._context.load.changed.set()
