"""The worker's loop: claim -> admit -> run -> settle. There is no barrier unless the policy has one.

`__main__.py` wires it. What is claimed starts on the engine at once; each answer goes to the settler
when it ends. `held.py` knows what is where.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import structlog

from gristmill.shared.connection import retrying
from gristmill.shared.errors import EngineDied, EngineUnavailable, LeaseLost
from gristmill.shared.queue import Queue, Settlement
from gristmill.shared.records import Claimed
from gristmill.shared.results import response_outcome
from gristmill.shared.tasks import end
from gristmill.worker import batching, metrics
from gristmill.worker.claiming import Claimer
from gristmill.worker.drain import Drain
from gristmill.worker.engine.interface import Engine, Response
from gristmill.worker.held import Held, Run
from gristmill.worker.reports import report_request
from gristmill.worker.settings import WorkerSettings
from gristmill.worker.settler import Settler
from gristmill.worker.verdicts import Nack, backoff_s, verdict

log = structlog.get_logger()

STOP_STEP_S = 0.5
"""Longest wait for a claim under way, and for aborted requests to leave the engine."""

STOP_TIMEOUT_S = 10.0
"""Longest wait for Redis to take back what is left; after it the lease runs out by itself."""

MAX_REASON_CHARS = 500

ENGINE_PRIORITY = {"high": -1, "normal": 0, "low": 1}
"""vLLM's: lower runs sooner."""


class Worker:
    """Feeds one engine from one queue.

    Args:
        queue: Where requests come from.
        engine: A started engine.
        policy: When to claim and how much.
        settings: Backoff and limits.
        drain: Tells when to stop.
        register: Opens a lease and returns the name of the new incarnation.

    Attributes:
        engine_death: Done once the engine is dead.
        num_settled: Requests whose records are written.
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
        self._held = Held()
        self._claimer = Claimer(queue, policy, settings, self._held, self._is_stopping)
        # The one that has just ended still counts as running.
        self._settler = Settler(queue, self._settled, lambda: self._held.num_running > 1)
        self._num_failures = 0
        self.num_settled = 0
        self.engine_death: asyncio.Future[EngineDied] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Claim and run until told to drain or until the engine dies, then stop cleanly."""
        self._claimer.worker = await self._register()
        settling = asyncio.create_task(self._settler.run())
        feeding = asyncio.create_task(self._feed())
        draining = asyncio.create_task(self._drain.started.wait())
        ends: list[asyncio.Future[Any]] = [feeding, settling, draining, self.engine_death]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            self._held.changed.set()
            await self._stop(feeding)
        finally:
            await end(feeding, settling, draining)
        for task in (feeding, settling):
            if not task.cancelled():
                task.result()

    def _is_stopping(self) -> bool:
        return self._drain.is_draining or self.engine_death.done()

    async def _feed(self) -> None:
        while not self._is_stopping():
            try:
                batch = await self._claimer.gather()
            except LeaseLost as lost:
                await self.lease_lost(lost.worker)
                continue
            for group in batching.groups(self._policy, batch):
                for claimed in group:
                    self._admit(claimed)
                while (
                    self._policy.has_barrier and self._held.num_running and not self._is_stopping()
                ):
                    await self._claimer.wait_for_change(None)

    def _admit(self, claimed: Claimed) -> None:
        run = self._held.find(claimed)
        if run and not self._is_stopping():
            task = asyncio.create_task(self._run(run))
            self._held.start(run, task)

    async def _run(self, run: Run) -> None:
        record = run.claimed.record
        priority = ENGINE_PRIORITY[record.priority]
        try:
            response = await self._engine.post(record.endpoint, record.body, priority=priority)
        except EngineDied as death:
            self.engine_died(death)
        except EngineUnavailable as error:
            await self._hand_back(run, error)
        except Exception as error:
            log.exception("request.run_failed", id=run.claimed.id)
            await self._nack(
                run, Nack({"code": "worker_error", "message": repr(error)[:MAX_REASON_CHARS]})
            )
        else:
            self._num_failures = 0
            await self._settle(run, response)

    async def _hand_back(self, run: Run, error: EngineUnavailable) -> None:
        """Give a request back, uncounted, and hold its slot while the engine recovers."""
        self._num_failures += 1
        pause_s = self._backoff_s(min(self._num_failures, 16))
        log.warning(
            "engine.unavailable", id=run.claimed.id, error=str(error), pause_s=round(pause_s, 3)
        )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._drain.started.wait()
        await self._release([run])

    async def _settle(self, run: Run, response: Response) -> None:
        decision = verdict(run.claimed, response)
        if isinstance(decision, Nack):
            await self._nack(run, decision)
            return
        claimed = run.claimed
        outcome = response_outcome(claimed.attempt, run.worker, response.status, response.body)
        settlement = Settlement(claimed.id, claimed.delivery, decision.status, outcome)
        self._settler.settle(run.worker, settlement)
        metrics.settling.set(self._settler.num_pending)
        report_request(run, response, decision.status)
        if claimed.crashes:
            self._claimer.suspect_width = batching.widened(self._claimer.suspect_width)

    async def _nack(self, run: Run, decision: Nack) -> None:
        claimed, delay_ms = run.claimed, int(self._backoff_s(run.claimed.attempt) * 1000)
        code = await retrying(
            lambda: self._queue.nack(run.worker, claimed, delay_ms, decision.error)
        )
        self._held.forget([claimed])
        metrics.retried.inc()
        event = "request.dead_lettered" if code == "dead_lettered" else "request.retried"
        log.warning(
            event, id=claimed.id, attempt=claimed.attempt, delay_ms=delay_ms, **decision.error
        )

    def _settled(self, settlements: Sequence[Settlement]) -> None:
        self._held.forget(settlements)
        self.num_settled += len(settlements)
        metrics.settling.set(self._settler.num_pending)

    async def _release(self, runs: Sequence[Run]) -> None:
        """Hand requests back to the front of their lanes, uncounted; the last chunk first."""
        starts = range(0, len(runs), batching.MAX_CLAIM)
        for start in reversed(starts):
            chunk = runs[start : start + batching.MAX_CLAIM]
            await self._release_chunk(chunk[0].worker, [run.claimed for run in chunk])

    async def _release_chunk(self, worker: str, items: Sequence[Claimed]) -> None:
        metrics.released.inc(await retrying(lambda: self._queue.release(worker, items)))
        self._held.forget(items)

    def _backoff_s(self, attempt: int) -> float:
        return backoff_s(attempt, self._settings.backoff_base_s, self._settings.backoff_max_s)

    # -- what others tell --------------------------------------------------------------------------

    def abort(self, ids: Sequence[str]) -> None:
        """Abort requests that ended elsewhere: cancelled, expired or finished by another worker."""
        runs = self._held.take(ids)
        self._held.cancel(runs)
        metrics.aborted.inc(len(runs))
        log.info("requests.aborted", ids=[run.claimed.id for run in runs])

    async def lease_lost(self, worker: str) -> None:
        """Start over under a new name: everything held has been given to others."""
        async with self._registering:
            if worker != self._claimer.worker:
                return
            runs = self._held.runs
            log.error("lease.lost", worker=worker, num_held=len(runs))
            metrics.leases_lost.inc()
            self.abort([run.claimed.id for run in runs])
            self._claimer.worker = await self._register()

    def engine_died(self, death: EngineDied) -> None:
        """Note the engine's death; the first report counts."""
        if not self.engine_death.done():
            self.engine_death.set_result(death)

    # -- stop --------------------------------------------------------------------------------------

    async def _stop(self, feeding: "asyncio.Task[None]") -> None:
        """Finish what fits into the grace period, hand back the rest, close the lease."""
        if not self.engine_death.done():
            await self._drain.until_over(self._held.idle)
        # A claim under way may still bring requests.
        await asyncio.wait([feeding], timeout=STOP_STEP_S)
        if tasks := self._held.cancel(self._held.runs):
            await asyncio.wait(tasks, timeout=STOP_STEP_S)
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._let_go()
        except TimeoutError:
            log.exception(
                "worker.left_requests",
                num_left=len(self._held.runs),
                remedy="wait for the lease's end",
            )

    async def _let_go(self) -> None:
        await self._settler.flushed()
        if self.engine_death.done():
            await self._give_up(self.engine_death.result())
        runs = self._held.runs
        await self._release(runs)
        async with self._registering:  # from here on, a beat that finds no lease is no news
            worker, self._claimer.worker = self._claimer.worker, ""
        await retrying(lambda: self._queue.bye(worker))
        log.info("worker.stopped", worker=worker, num_released=len(runs))

    async def _give_up(self, death: EngineDied) -> None:
        """Report the engine's death: what was in flight becomes suspect."""
        worker, runs = self._claimer.worker, self._held.runs
        evidence = {"error": str(death), "worker": worker, "num_in_flight": len(runs)}
        while await retrying(lambda: self._queue.crash(worker, evidence)):
            pass
        self._held.forget([run.claimed for run in runs])
