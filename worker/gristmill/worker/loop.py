"""The worker's loop: claim -> admit -> run -> settle. There is no barrier unless the policy has one.

`__main__.py` wires it. The loop claims what fits, starts each request on the engine at once and hands
each answer to the settler when it ends; what it holds is in `_held` from claim to settled record.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog
from redis.exceptions import RedisError
from ulid import ULID

from gristmill.shared.connection import retrying
from gristmill.shared.errors import EngineDied, EngineUnavailable, InvalidRequest, LeaseLost
from gristmill.shared.intake import request_from_json
from gristmill.shared.queue import Claim, Queue, Settlement, Stats
from gristmill.shared.records import Claimed, response_outcome
from gristmill.worker import batching, metrics
from gristmill.worker.drain import Drain
from gristmill.worker.engine.interface import Engine, Response
from gristmill.worker.settings import WorkerSettings
from gristmill.worker.settler import Settler
from gristmill.worker.verdicts import Ack, Nack, backoff_s, verdict

log = structlog.get_logger()

STOP_STEP_S = 0.5
"""Longest wait for a claim under way, and for aborted requests to leave the engine."""

STOP_TIMEOUT_S = 10.0
"""Longest wait for Redis to take back what is left; after it the lease runs out by itself."""

ENGINE_PRIORITY = {"high": -1, "normal": 0, "low": 1}
"""vLLM's: lower runs sooner."""


@dataclass(slots=True, eq=False)
class Run:
    """One claimed request in this process, from claim to settled record.

    Attributes:
        claimed: What was claimed.
        worker: The incarnation that claimed it.
        claimed_at: Monotonic seconds.
        queue_wait_s: From submit to claim, by Redis's clock.
        task: What runs it, once it is admitted.
    """

    claimed: Claimed
    worker: str
    claimed_at: float
    queue_wait_s: float
    task: "asyncio.Task[None] | None" = None


class Worker:
    """Feeds one engine from one queue.

    Args:
        queue: Where requests come from.
        engine: A started engine.
        policy: When to claim and how much.
        settings: Backoff and limits.
        drain: Tells when to stop.
        register: Opens a lease and returns the name of the new incarnation.
    """

    def __init__(
        self,
        queue: Queue,
        engine: Engine,
        policy: batching.BatchPolicy,
        settings: WorkerSettings,
        drain: Drain,
        *,
        register: Callable[[], Awaitable[str]],
    ) -> None:
        self._queue = queue
        self._engine = engine
        self._policy = policy
        self._settings = settings
        self._drain = drain
        self._register = register
        self._registering = asyncio.Lock()
        self._settler = Settler(queue, self._forget)
        self._name = ""
        self._held: dict[str, Run] = {}
        self._running: set[Run] = set()
        self._suspect_width = 1
        self._num_failures = 0
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self.engine_death: asyncio.Future[EngineDied] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Claim and run until told to drain or until the engine dies, then stop cleanly."""
        self._name = await self._register()
        settling = asyncio.create_task(self._settler.run())
        feeding = asyncio.create_task(self._feed())
        stopping = asyncio.create_task(self._drain.started.wait())
        try:
            await asyncio.wait(
                [feeding, settling, stopping, self.engine_death],
                return_when=asyncio.FIRST_COMPLETED,
            )
            self._changed.set()
            await self._stop(feeding)
        finally:
            for task in (feeding, settling, stopping):
                task.cancel()
            ends = await asyncio.gather(feeding, settling, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end

    @property
    def _is_stopping(self) -> bool:
        return self._drain.is_draining or self.engine_death.done()

    async def _feed(self) -> None:
        while not self._is_stopping:
            try:
                batch = await self._gather()
            except LeaseLost:
                await self.lease_lost(self._name)
                continue
            for group in batching.groups(self._policy, batch):
                for claimed in group:
                    self._admit(claimed)
                while self._policy.has_barrier and self._running and not self._is_stopping:
                    await self._wait_for_change(None)

    # -- claim ------------------------------------------------------------------------------------

    async def _gather(self) -> list[Claimed]:
        """Claim until the policy closes the batch."""
        gathered: list[Claimed] = []
        opened_at = time.monotonic()
        while not self._is_stopping:
            room = batching.claim_size(self._policy, len(self._running), len(gathered))
            if room == 0 and not gathered:
                await self._wait_for_change(None)
                continue
            claim = await self._claim(room)
            if not gathered:
                opened_at = time.monotonic()
            gathered.extend(claim.claimed)
            reason = batching.close_reason(
                self._policy,
                running=len(self._running),
                gathered=len(gathered),
                got=len(claim.claimed),
                waited_s=time.monotonic() - opened_at,
            )
            if reason:
                metrics.claims.labels(reason).inc()
                return gathered
            await self._wait_for_work(claim, opened_at if gathered else None)
        return []  # what was gathered stays held and is released

    async def _claim(self, room: int) -> Claim:
        nonce = str(ULID())
        suspects = [run for run in self._held.values() if run.claimed.crashes]
        runs_alone = any(run.claimed.crashes > 1 for run in suspects)
        claim = await retrying(
            lambda: self._queue.claim(
                self._name,
                nonce,
                room,
                max_tokens=self._settings.max_claim_tokens,
                max_suspects=0 if runs_alone else max(0, self._suspect_width - len(suspects)),
                has_suspects=bool(suspects),
            )
        )
        now = time.monotonic()
        for claimed in claim.claimed:
            wait_s = max(0.0, (claim.now_ms - claimed.record.enqueued_ms) / 1000)
            self._held[claimed.id] = Run(claimed, self._name, now, wait_s)
            metrics.queue_wait.observe(wait_s)
        metrics.claimed.inc(len(claim.claimed))
        for token, element in claim.inbox:
            await self._admit_element(token, element)
        return claim

    async def _admit_element(self, token: str, element: bytes) -> None:
        """Turn plain JSON from the inbox into a request, or into a dead letter."""
        try:
            request = request_from_json(
                element,
                default_id=f"inbox-{token}",
                max_request_bytes=self._settings.max_request_bytes,
            )
        except InvalidRequest as error:
            evidence = {"error": str(error)}
            await retrying(lambda: self._queue.bury(self._name, token, f"inbox-{token}", evidence))
            log.warning(
                "request.dead_lettered", id=f"inbox-{token}", reason="unreadable", error=str(error)
            )
        else:
            await retrying(lambda: self._queue.admit(self._name, token, request))

    async def _wait_for_work(self, claim: Claim, opened_at: float | None) -> None:
        """Wait for the doorbell, the next delayed request, the batch's timeout or a change here."""
        timeout_s = self._settings.poll_interval_s
        if claim.inbox:
            return
        if claim.next_due_ms is not None:
            timeout_s = min(timeout_s, (claim.next_due_ms - claim.now_ms) / 1000)
        if opened_at is not None:
            timeout_s = min(timeout_s, opened_at + self._policy.timeout_s - time.monotonic())
        if timeout_s > 0:
            await self._wait_for_change(timeout_s)

    async def _wait_for_change(self, doorbell_s: float | None) -> None:
        """Wait until a slot frees or, given a time, until the doorbell rings."""
        if self._is_stopping:
            return
        self._changed.clear()
        waits: set[asyncio.Task[object]] = {asyncio.create_task(self._changed.wait())}
        if doorbell_s is not None:
            waits.add(asyncio.create_task(self._hear_doorbell(doorbell_s)))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _hear_doorbell(self, timeout_s: float) -> None:
        try:
            await self._queue.redis.blpop([self._queue.keys.doorbell], timeout=max(0.01, timeout_s))
        except (RedisError, OSError):
            await asyncio.sleep(timeout_s)  # away: the claim's own retry tells

    # -- admit, run -------------------------------------------------------------------------------

    def _admit(self, claimed: Claimed) -> None:
        run = self._held.get(claimed.id)
        if run is None or run.claimed is not claimed or self._is_stopping:
            return  # aborted, or the lease was lost, between claim and admit
        self._idle.clear()
        self._running.add(run)
        run.task = asyncio.create_task(self._run_request(run))
        run.task.add_done_callback(lambda _: self._ended(run))
        metrics.running.set(len(self._running))

    async def _run_request(self, run: Run) -> None:
        record = run.claimed.record
        try:
            response = await self._engine.post(
                record.endpoint, record.body, priority=ENGINE_PRIORITY[record.priority]
            )
        except EngineDied as death:
            self.engine_died(death)
        except EngineUnavailable as error:
            await self._hand_back(run, error)
        else:
            self._num_failures = 0
            await self._settle(run, response)

    async def _hand_back(self, run: Run, error: EngineUnavailable) -> None:
        """Give a request back, uncounted, and hold the slot while the engine recovers."""
        self._num_failures += 1
        pause_s = backoff_s(
            min(self._num_failures, 10), self._settings.backoff_base_s, self._settings.backoff_max_s
        )
        log.warning(
            "engine.unavailable", id=run.claimed.id, error=str(error), pause_s=round(pause_s, 3)
        )
        await asyncio.sleep(pause_s)
        await self._release([run])

    def _ended(self, run: Run) -> None:
        self._running.discard(run)
        metrics.running.set(len(self._running))
        self._changed.set()
        if not self._running:
            self._idle.set()
        if run.task and not run.task.cancelled() and (error := run.task.exception()):
            log.error("request.run_failed", id=run.claimed.id, exc_info=error)
            self.engine_died(
                EngineDied(f"the worker failed while it ran {run.claimed.id}: {error!r}")
            )

    # -- settle -----------------------------------------------------------------------------------

    async def _settle(self, run: Run, response: Response) -> None:
        decision = verdict(
            run.claimed, response, self._settings.backoff_base_s, self._settings.backoff_max_s
        )
        if isinstance(decision, Nack):
            await self._nack(run, decision)
        else:
            self._ack(run, response, decision)
        if run.claimed.crashes:
            self._suspect_width = batching.suspect_width(self._suspect_width, ended_well=True)

    def _ack(self, run: Run, response: Response, decision: Ack) -> None:
        claimed = run.claimed
        outcome = response_outcome(claimed.attempt, run.worker, response.status, response.body)
        self._settler.settle(
            run.worker, Settlement(claimed.id, claimed.delivery, decision.status, outcome)
        )
        metrics.settling.set(self._settler.num_pending)
        _log_request(run, response, decision.status)

    async def _nack(self, run: Run, decision: Nack) -> None:
        claimed = run.claimed
        code = await retrying(
            lambda: self._queue.nack(
                run.worker, claimed, int(decision.delay_s * 1000), decision.error
            )
        )
        self._forget([claimed.id])
        metrics.retried.inc()
        event = "request.dead_lettered" if code == "dead_lettered" else "request.retried"
        log.warning(event, id=claimed.id, attempt=claimed.attempt, code=code, **decision.error)

    def _forget(self, ids: Sequence[str]) -> None:
        for request_id in ids:
            self._held.pop(request_id, None)
        metrics.settling.set(self._settler.num_pending)

    async def _release(self, runs: Sequence[Run]) -> None:
        """Hand requests back to the front of their lanes, uncounted."""
        for start in range(0, len(runs), batching.MAX_CLAIM):
            chunk = runs[start : start + batching.MAX_CLAIM]
            items = [run.claimed for run in chunk]
            released = await retrying(lambda w=chunk[0].worker, i=items: self._queue.release(w, i))  # type: ignore[misc]  # bound now
            metrics.released.inc(released)
        self._forget([run.claimed.id for run in runs])

    # -- told by others ---------------------------------------------------------------------------

    def abort(self, ids: Sequence[str]) -> None:
        """Abort requests that ended elsewhere: cancelled, expired or finished by another worker."""
        runs = [run for request_id in ids if (run := self._held.pop(request_id, None))]
        for run in runs:
            if run.task:
                run.task.cancel()
        metrics.aborted.inc(len(runs))
        log.info("requests.aborted", ids=[run.claimed.id for run in runs])

    async def lease_lost(self, worker: str) -> None:
        """Start over under a new name: everything held has been given to others."""
        async with self._registering:
            if worker != self._name:
                return
            metrics.leases_lost.inc()
            log.error("lease.lost", worker=worker, num_held=len(self._held))
            self.abort(list(self._held))
            self._name = await self._register()

    def engine_died(self, death: EngineDied) -> None:
        """Note the engine's death; the first report counts."""
        if not self.engine_death.done():
            self.engine_death.set_result(death)

    def observe(self, stats: Stats) -> None:
        """Export one view of the queue."""
        for state in ("queued", "in_flight"):
            metrics.queue_requests.labels(state).set(stats.counters.get(state, 0))
        metrics.queue_requests.labels("delayed").set(stats.num_delayed)
        metrics.queue_requests.labels("dead").set(stats.num_dead)
        metrics.queue_requests.labels("inbox").set(stats.num_inbox)
        metrics.queue_bytes.set(stats.counters.get("bytes", 0))

    # -- stop -------------------------------------------------------------------------------------

    async def _stop(self, feeding: "asyncio.Task[None]") -> None:
        """Finish what fits into the grace period, hand back the rest, close the lease."""
        if not self.engine_death.done():
            await self._drain.until_over(self._idle)
        await asyncio.wait(
            [feeding], timeout=STOP_STEP_S
        )  # a claim under way may still return requests
        tasks = [run.task for run in self._running if run.task]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_STEP_S)
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._let_go()
        except TimeoutError:
            log.error(
                "worker.left_requests",
                ids=list(self._held),
                remedy="they return when the lease ends",
            )  # noqa: TRY400

    async def _let_go(self) -> None:
        await self._settler.flushed()
        if self.engine_death.done():
            await self._give_up(self.engine_death.result())
        num_released = len(self._held)
        await self._release(list(self._held.values()))
        await retrying(lambda: self._queue.bye(self._name))
        log.info("worker.stopped", worker=self._name, num_released=num_released)

    async def _give_up(self, death: EngineDied) -> None:
        """Report the engine's death: what was in flight becomes suspect."""
        evidence = {"error": str(death), "worker": self._name, "num_in_flight": len(self._held)}
        while await retrying(lambda: self._queue.crash(self._name, evidence)):
            pass
        self._held.clear()


def _log_request(run: Run, response: Response, status: str) -> None:
    """Write the one canonical line of a request."""
    run_s = time.monotonic() - run.claimed_at
    metrics.finished.labels(status).inc()
    metrics.prompt_tokens.inc(response.prompt_tokens)
    metrics.output_tokens.inc(response.output_tokens)
    metrics.e2e.observe(run.queue_wait_s + run_s)
    if response.ttft_s is not None:
        metrics.ttft.observe(response.ttft_s)
    record = run.claimed.record
    log.info(
        "request.completed",
        id=run.claimed.id,
        status=status,
        status_code=response.status,
        endpoint=record.endpoint,
        tenant=record.tenant,
        priority=record.priority,
        queue_wait_s=round(run.queue_wait_s, 3),
        ttft_s=None if response.ttft_s is None else round(response.ttft_s, 4),
        e2e_s=round(run.queue_wait_s + run_s, 3),
        prompt_tokens=response.prompt_tokens,
        output_tokens=response.output_tokens,
        cached_tokens=response.cached_tokens,
        finish_reason=response.finish_reason,
        attempt=run.claimed.attempt,
        worker=run.worker,
    )
