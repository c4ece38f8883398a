"""The worker's loop: claim -> admit -> run -> settle. There is no barrier unless the policy has one.

`shift.py` wires it. What is claimed starts on the engine at once (`runner.py`); each answer goes to the
settler when it ends. `held.py` knows what is where. The loop outlives the engine: at a death it reports what
was in flight, under the same lease, and goes on when the engine is back.
"""

import asyncio
import socket
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import structlog
from ulid import ULID

from gristmill.shared.connection import retrying
from gristmill.shared.errors import EngineDied, LeaseLost
from gristmill.shared.operations import Stats
from gristmill.shared.queue import Queue
from gristmill.shared.tasks import end
from gristmill.worker import batching, metrics
from gristmill.worker.admission import Admission
from gristmill.worker.claiming import Claimer
from gristmill.worker.drain import Drain
from gristmill.worker.held import Held
from gristmill.worker.memory import should_pause_claims
from gristmill.worker.reports import report_queue
from gristmill.worker.runner import Runner
from gristmill.worker.settings import WorkerSettings
from gristmill.worker.supervisor import Supervisor

log = structlog.get_logger()

STOP_STEP_S = 0.5
"""Longest wait for a claim under way, and for aborted requests to leave the engine."""

STOP_TIMEOUT_S = 10.0
"""Longest wait for Redis to take back what is left; after it the lease runs out by itself."""

MAX_REASON_CHARS = 500


def new_worker_name() -> str:
    """Return the name of a new incarnation; no other ever has it."""
    return f"{socket.gethostname()[:48]}-{ULID()}"


class Worker:
    """Feeds one engine from one queue.

    Args:
        queue: Where requests come from.
        supervisor: Of a started engine.
        policy: When to claim and how much.
        settings: Backoff and limits.
        drain: Tells when to stop.
        admission: What the engine has room for.
        register: Opens a lease under a name; True once it is open.
    """

    def __init__(
        self,
        queue: Queue,
        supervisor: Supervisor,
        policy: batching.BatchPolicy,
        settings: WorkerSettings,
        drain: Drain,
        *,
        admission: Admission,
        register: Callable[[str], Coroutine[Any, Any, bool]],
    ) -> None:
        self._queue = queue
        self._supervisor = supervisor
        self._policy = policy
        self._settings = settings
        self._drain = drain
        self._register = register
        self._registering = asyncio.Lock()
        self._held = Held()
        self._claimer = Claimer(
            queue,
            policy,
            settings,
            self._held,
            admission=admission,
            is_stopping=self._is_stopping,
        )
        self._runner = Runner(
            queue,
            supervisor.engine,
            self._held,
            settings,
            drain,
            admission=admission,
            died=self.engine_died,
            suspect_ended=self._claimer.widen,
        )
        self._engine_death: asyncio.Future[EngineDied] = asyncio.get_running_loop().create_future()
        self._evidence: dict[str, Any] | None = None  # of a death that is not reported yet

    async def run(self) -> EngineDied | None:
        """Claim and run until told to drain, through the deaths of the engine; then stop cleanly.

        Returns:
            The death after which the engine was given up, or None after a drain.
        """
        settling = asyncio.create_task(self._runner.settler.run())
        self._claimer.worker = new_worker_name()
        death = None
        try:
            if await self._drain.unless_started(self._register(self._claimer.worker)):
                death = await self._live(settling)
            while death and await self._survive(death, settling):
                death = await self._live(settling)
        finally:
            await self._stop()
            await end(settling)
        return None if self._drain.is_draining else death

    async def _live(self, settling: "asyncio.Task[None]") -> EngineDied | None:
        """Feed the engine until the drain begins or the engine dies, and let what can end do so."""
        self._engine_death = asyncio.get_running_loop().create_future()
        watching = asyncio.create_task(self._watch())
        feeding = asyncio.create_task(self._feed())
        draining = asyncio.create_task(self._drain.started.wait())
        ends: list[asyncio.Future[Any]] = [feeding, settling, draining, self._engine_death]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            self._held.changed.set()
            if not self._engine_death.done():
                await self._drain.until_over(self._held.idle)
            # A claim under way may still bring requests.
            await asyncio.wait([feeding], timeout=STOP_STEP_S)
        finally:
            await end(feeding, draining, watching)
        if tasks := self._held.cancel(self._held.runs):
            await asyncio.wait(tasks, timeout=STOP_STEP_S)
        for task in (feeding, settling):
            if task.done() and not task.cancelled():
                task.result()
        return self._engine_death.result() if self._engine_death.done() else None

    def _is_stopping(self) -> bool:
        return self._drain.is_draining or self._engine_death.done()

    async def _watch(self) -> None:
        self.engine_died(await self._supervisor.watch())

    async def _feed(self) -> None:
        while not self._is_stopping():
            try:
                batch = await self._claimer.gather()
            except LeaseLost as lost:
                await self.lease_lost(lost.worker)
                continue
            for group in batching.groups(self._policy, batch):
                for claimed in group:
                    if not self._is_stopping():
                        self._runner.admit(claimed)
                while (
                    self._policy.has_barrier and self._held.num_running and not self._is_stopping()
                ):
                    await self._claimer.wait_for_change(None)

    # -- what others tell --------------------------------------------------------------------------

    def abort(self, ids: Sequence[str]) -> None:
        """Abort requests that ended elsewhere: cancelled, expired or finished by another worker."""
        runs = self._held.take(ids)
        self._held.cancel(runs)
        metrics.aborted.inc(len(runs))
        log.info("requests.aborted", ids=[run.claimed.id for run in runs])

    def compare(self, num_in_flight: int) -> None:
        """Look into it if the queue believes that this worker holds more than it does."""
        if num_in_flight > len(self._held.runs):
            self._claimer.is_in_doubt = True
            self._held.changed.set()

    def see(self, stats: Stats) -> None:
        """Take in one view of the queue."""
        report_queue(stats)
        is_paused = should_pause_claims(stats)
        if is_paused != self._claimer.is_paused:
            log.warning(
                "claims.paused" if is_paused else "claims.resumed",
                used_memory=stats.used_memory,
                max_memory=stats.max_memory,
                remedy="read results and let them expire sooner, or raise maxmemory",
            )
            metrics.claims_paused.set(is_paused)
            self._claimer.is_paused = is_paused
            self._held.changed.set()
        if is_paused:  # one a beat, so that no pause lasts for ever
            self._claimer.allowance = 1
            self._held.changed.set()

    async def lease_lost(self, worker: str) -> None:
        """Start over under a new name: everything held has been given to others."""
        async with self._registering:
            if worker != self._claimer.worker:
                return
            runs = self._held.runs
            log.error("lease.lost", worker=worker, num_held=len(runs))
            metrics.leases_lost.inc()
            self.abort([run.claimed.id for run in runs])
            name = new_worker_name()
            await self._register(name)
            self._claimer.worker = name

    def engine_died(self, death: EngineDied) -> None:
        """Note the engine's death; the first report counts."""
        if not self._engine_death.done():
            self._engine_death.set_result(death)

    # -- the engine's death and the worker's end -----------------------------------------------------

    async def _survive(self, death: EngineDied, settling: "asyncio.Task[None]") -> bool:
        """Give up what was in flight while the engine is built anew; True if it lives again."""
        self._claimer.narrow()
        self._evidence = {
            "error": str(death)[:MAX_REASON_CHARS].encode(errors="replace").decode(),
            "worker": self._claimer.worker,
            "num_in_flight": sum(run.task is not None for run in self._held.runs),
            **self._supervisor.engine.evidence(),
        }
        giving_up = self._drain.unless_started(self._give_up(self._evidence))
        reviving = self._supervisor.revive(death, self._runner.num_settled)
        steps = asyncio.create_task(reviving), asyncio.create_task(giving_up)
        both: asyncio.Future[Any] = asyncio.gather(*steps)
        ends: list[asyncio.Future[Any]] = [both, settling]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if settling.done():
                settling.result()
            await both
            return steps[0].result()
        finally:
            await end(*steps)

    async def _give_up(self, evidence: dict[str, Any]) -> None:
        """Report the engine's death: what was in flight becomes suspect, what waited is handed back."""
        await self._runner.settler.flushed()
        runs = self._held.runs
        await self._runner.release([run for run in runs if run.task is None])
        worker, moved = self._claimer.worker, -1
        await self._claimer.give_back_unknown(worker)  # claimed a moment ago, never run
        while moved:
            moved, killed = await retrying(lambda: self._queue.crash(worker, evidence))
            for request_id in killed:
                log.error("request.dead_lettered", id=request_id, reason="engine_killed")
        self._held.forget([run.claimed for run in runs])
        self._evidence = None

    async def _stop(self) -> None:
        """Hand back what is left and close the lease."""
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
        await self._runner.settler.flushed()
        if self._evidence:
            await self._give_up(self._evidence)
        runs = self._held.runs
        await self._runner.release(runs)
        async with self._registering:  # from here on, a beat that finds no lease is no news
            worker, self._claimer.worker = self._claimer.worker, ""
        while not await retrying(lambda: self._queue.bye(worker)):
            await self._claimer.give_back_unknown(worker)
        log.info("worker.stopped", worker=worker, num_released=len(runs))
