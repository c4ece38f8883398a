"""Serve one queue of a worker: its lease, its claims, and its requests in flight.

A worker has one source for each of its queues, and one engine for all of them. The batcher claims
through the source. The loop starts and stops it, and reports the engine's death to it. `lease.py`
opens the lease, and `heartbeat.py` renews it.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import structlog
from redis.exceptions import RedisError
from ulid import ULID

from gristmill.shared.backlog import Backlog
from gristmill.shared.errors import LeaseLost
from gristmill.shared.fleet_cache import FleetCache
from gristmill.shared.look import look_at
from gristmill.shared.operations import Claim, ClaimTerms, Settlement
from gristmill.shared.queue import Queue
from gristmill.shared.queue_stats import Stats
from gristmill.shared.redis_retry import retrying
from gristmill.shared.tasks import end
from gristmill.worker import metrics
from gristmill.worker.ack_writer import AckWriter
from gristmill.worker.admission.capacity import Demand
from gristmill.worker.admission.room import Room
from gristmill.worker.batcher import ClaimResult
from gristmill.worker.context import WorkerContext
from gristmill.worker.death_report import DeathReport
from gristmill.worker.event_buffers import EventBuffers
from gristmill.worker.event_writer import EventWriter
from gristmill.worker.heartbeat import Heartbeat, HeartbeatEvents
from gristmill.worker.in_flight import InFlight, cancel
from gristmill.worker.inbox import admit_element
from gristmill.worker.lease import Lease
from gristmill.worker.lease_losses import LeaseLosses
from gristmill.worker.load_report import LoadReport
from gristmill.worker.other_models import OtherModels
from gristmill.worker.redis_memory import ClaimPause
from gristmill.worker.reports import PauseLog

log = structlog.get_logger()

STOP_TIMEOUT_S = 10.0
"""Most seconds to release the remaining requests; after that the lease expires by itself."""

FLEET_FRESH_S = 1.0
"""Seconds for which the live workers of a queue count as known."""


class QueueSource:
    """Feeds an engine from one queue.

    Args:
        open_queue: Opens the queue on new connections.
        weight: Weight of the queue among the worker's queues.
        context: The objects that the worker's parts share.

    Attributes:
        weight: Weight of the queue.
        demand: Requests left in the queue after the last claim, and its number of workers.
        failed: Future that fails if a writer stops by an error, because then nothing writes results or
            events any more. It never has a result.
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
        fleet = FleetCache(self._queue, FLEET_FRESH_S)
        events = EventBuffers(context.settings.max_stream_bytes)
        self._in_flight = InFlight(self._queue, context.load, fleet.answers, events)
        self._death_report = DeathReport(self._queue, self._in_flight)
        self._acks = AckWriter(
            self._queue,
            self._in_flight.finished,
            written=self._written,
            # The request that just ended still counts as running.
            may_grow=lambda: self._in_flight.num_running > 1,
            liveness=context.liveness,
        )
        ttl_s = min(context.settings.stream_ttl_s, context.settings.result_ttl_s)
        self._event_writer = EventWriter(
            self._queue, events, ttl_s * 1000, context.settings.max_stream_bytes
        )
        heartbeat_events = HeartbeatEvents(
            aborted=self._abort,
            lost=lambda worker: asyncio.ensure_future(self._lease.replace(worker)),
            in_flight_counted=self._check_in_flight,
            stats_read=self._take_stats,
        )
        beat_s = context.settings.beat_interval_s
        self._load_report = LoadReport(context.engine.stats)
        self._heartbeat = Heartbeat(
            open_queue, beat_s, context.liveness, heartbeat_events, others=OtherModels(context.served),
            load_report=self._load_report,
        )  # fmt: skip
        self._losses = LeaseLosses(self._name, context.settings.lease_s, context.liveness)
        self._lease = Lease(
            self._queue,
            context.facts,
            context.settings.scheduling_policy,
            losses=self._losses,
            opened=self._lease_opened,
            lost=self._abort_all,
        )
        self._writing: asyncio.Task[None] | None = None
        self._writing_events: asyncio.Task[None] | None = None
        self._pause = ClaimPause(self._name)
        self._pause_log = PauseLog(self._name)
        self._may_be_empty = False  # after the last claim; then the next one first asks for less
        self._is_in_doubt = False  # the queue may count requests for this worker that it lacks

    @property
    def has_suspects(self) -> bool:
        """True if the worker holds a request that was in flight when an engine or a worker died."""
        return bool(self._in_flight.suspects)

    @property
    def num_started(self) -> int:
        """Requests started on the engine and not settled yet."""
        return sum(request.task is not None for request in self._in_flight.requests)

    async def start(self) -> None:
        """Open the lease, and start to renew it and to write settlements and events."""
        self._writing = asyncio.create_task(self._acks.run())
        self._writing.add_done_callback(self._writing_ended)
        self._writing_events = asyncio.create_task(self._event_writer.run())
        self._writing_events.add_done_callback(self._writing_ended)
        await self._lease.open()
        self._heartbeat.start()

    async def stats(self) -> Stats:
        """Return one view of the queue; wait while Redis is away."""
        return await retrying(self._queue.stats)

    # -- claims --------------------------------------------------------------------------------------

    async def claim(
        self, room: Room, suspect_width: int, avoid: Sequence[str] = ()
    ) -> ClaimResult | None:
        """Claim once, and admit the inbox elements that the claim took.

        After a claim that found nothing or left nothing, first ask whether there is anything: that
        costs less.

        If the lease is lost, open a new one and claim under its name. Repeat the call with the same
        nonce until Redis answers, so a lost reply loses no request.

        Args:
            room: What the claim may take, at least one request.
            suspect_width: Suspects of this queue that may run at the same time.
            avoid: Tenants to take from only if no other waits.

        Returns:
            The claim's result, or None while Redis is nearly full or the worker keeps losing its lease.
        """
        room = room._replace(num_requests=self._pause.granted(room.num_requests))
        if room.num_requests == 0:
            return None
        if (
            self._may_be_empty
            and not (look := await retrying(partial(look_at, self._queue))).has_work
        ):
            return ClaimResult((), has_inbox=False, next_due_s=look.next_due_s)
        while self._losses.may_claim(time.monotonic()):
            worker = self._lease.worker
            try:
                claim = await self._claim(worker, room, suspect_width, avoid)
            except LeaseLost as lost:
                await self._lease.replace(lost.worker)
            else:
                return await self._taken(claim, worker)
        return None

    async def _taken(self, claim: Claim, worker: str) -> ClaimResult:
        """Keep the requests of a claim, and admit its inbox elements."""
        self.demand = Demand(claim.num_queued, claim.num_workers)
        self._may_be_empty = claim.num_queued == 0 or not (claim.claimed or claim.inbox)
        requests = self._in_flight.add(claim, worker)
        max_bytes = self._context.settings.max_request_bytes
        for token, element in claim.inbox:
            await admit_element(self._queue, worker, token, element, max_bytes)
        return ClaimResult(requests, bool(claim.inbox), claim.next_due_s)

    async def has_high(self) -> bool:
        """Return whether requests wait in the lane `high`; wait while Redis is away."""
        return await retrying(lambda: self._queue.has_waiting("high"))

    async def resolve_doubt(self) -> None:
        """Release requests that the queue counts for this worker and that the worker lacks.

        Do nothing unless a heartbeat has found such requests. Call it between claims.
        """
        if self._is_in_doubt:
            self._is_in_doubt = False
            await self._in_flight.release_unknown(self._lease.worker)

    async def hear_doorbell(self, timeout_s: float) -> None:
        """Wait until the doorbell rings, at most `timeout_s` seconds."""
        try:
            bell = [self._queue.keys.doorbell]
            if await self._queue.redis.blpop(bell, timeout=max(0.01, timeout_s)):
                self._may_be_empty = False
        except (RedisError, OSError):
            await asyncio.sleep(timeout_s)  # Redis is away; the next claim waits until it is back

    async def _claim(
        self, worker: str, room: Room, suspect_width: int, avoid: Sequence[str]
    ) -> Claim:
        nonce = str(ULID())
        width = self._losses.suspect_width(suspect_width, time.monotonic())
        return await retrying(
            lambda: self._queue.claim(
                worker, nonce, room.num_requests, self._terms(room, width, avoid)
            )
        )

    def _terms(self, room: Room, suspect_width: int, avoid: Sequence[str]) -> ClaimTerms:
        return ClaimTerms(
            max_tokens=room.num_tokens,
            max_bytes=room.num_bytes,
            suspects=self._in_flight.suspect_room(suspect_width),
            lanes=room.lanes,
            ms_per_token=self._context.load.token_time.ms_per_token,
            avoid=avoid,
        )

    # -- the engine's death and the worker's end -----------------------------------------------------

    def cancel_running(self) -> "list[asyncio.Task[None]]":
        """Abort all running requests in the engine; return the tasks that will end soon."""
        return cancel(self._in_flight.requests)

    def note_death(self, evidence: Mapping[str, Any]) -> None:
        """Store the evidence of the engine's death; `report_death` sends it to the queue."""
        self._death_report.note({**evidence, "worker": self._lease.worker})

    async def report_death(self) -> None:
        """Report the engine's death to the queue, if there is one to report."""
        await self._death_report.send(self._lease)

    async def stop(self) -> None:
        """Release the remaining requests, and close the lease and the connections.

        If Redis is away for longer than `STOP_TIMEOUT_S`, the lease expires by itself.
        """
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._release_all()
        except (TimeoutError, RedisError) as error:
            log.error(  # noqa: TRY400  # a message for people
                "worker.left_requests",
                queue=self._name,
                error=str(error) or type(error).__name__,
                num_left=len(self._in_flight.requests),
                remedy="wait for the lease's end",
            )
        finally:
            await end(self._writing, self._writing_events)
            await self._lease.abandon()
            await self._heartbeat.stop()
            await self._queue.redis.aclose()

    async def _release_all(self) -> None:
        if not self._lease.was_opened:  # stopped before the lease was opened
            return
        await self._lease.finish_opening()
        await self._in_flight.finished.join()
        await self.report_death()
        requests = self._in_flight.requests
        await self._in_flight.release(requests)
        worker = await self._lease.close(self._in_flight.release_unknown)
        log.info("worker.stopped", worker=worker, queue=self._name, num_released=len(requests))

    # -- callbacks from other parts ----------------------------------------------------------------

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
        self._context.liveness.num_settled += len(settlements)
        metrics.settling.dec(len(settlements))

    def _writing_ended(self, writing: "asyncio.Task[None]") -> None:
        if not writing.cancelled() and not self.failed.done():
            self.failed.set_exception(writing.exception() or RuntimeError("a writer ended"))

    def _abort_all(self) -> int:
        """Abort all requests: the lease is lost, and other workers have the requests."""
        requests = self._in_flight.requests
        self._abort([request.id for request in requests])
        return len(requests)

    def _abort(self, ids: Sequence[str]) -> None:
        """Abort requests that ended elsewhere: cancelled, expired or finished by another worker."""
        aborted = self._in_flight.abort(ids)
        metrics.aborted.inc(len(aborted))
        log.info("requests.aborted", queue=self._name, ids=aborted)

    def _check_in_flight(self, num_in_flight: int) -> None:
        """Note a doubt if the queue counts more requests for this worker than it has."""
        if num_in_flight > len(self._in_flight.requests):
            self._is_in_doubt = True
            self._context.load.wake()

    def _take_stats(self, stats: Stats) -> None:
        metrics.queues.note(Backlog.of(self._name, stats))
        self._pause_log.take(stats.pauses)
        load, waits_for = self._context.load, self._context.liveness.waits_for
        self._load_report.sample(time.monotonic(), load.num_running, waits_for)
        if self._pause.take(stats):
            load.wake()
