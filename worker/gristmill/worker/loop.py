"""Run the worker's loop: claim what the engine has room for, start it, settle it.

`wiring.py` makes the loop. The batcher (`batcher.py`) claims from the queues (`queue_source.py`).
The runner (`runner.py`) starts each claimed request on the engine at once and settles it when it
ends. Batches do not wait for each other unless the batch policy has a barrier. The loop outlives
the engine. When the engine dies, the worker keeps its leases and reports the death to each queue.
The loop continues when the engine is back.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from gristmill.shared.errors import EngineDied
from gristmill.shared.tasks import end
from gristmill.worker import batch_policy
from gristmill.worker.batch_policy import BatchPolicy
from gristmill.worker.batcher import Batcher
from gristmill.worker.context import WorkerContext
from gristmill.worker.in_flight import ClaimedRequest
from gristmill.worker.queue_source import QueueSource
from gristmill.worker.runner import Runner
from gristmill.worker.supervisor import Supervisor
from gristmill.worker.until_empty import EmptyRule, UntilEmpty
from gristmill.worker.verdicts import MAX_REASON_CHARS

STOP_STEP_S = 0.5
"""Most seconds to wait for a running claim, and for aborted requests to leave the engine."""


class Worker:
    """Feeds one engine from its queues.

    Args:
        sources: The queues; `run` starts them.
        supervisor: Supervisor of the started engine.
        policy: The rule that says when to claim and how much.
        context: The objects that the worker's parts share.
    """

    def __init__(
        self,
        sources: Sequence[QueueSource],
        supervisor: Supervisor,
        policy: BatchPolicy,
        context: WorkerContext,
    ) -> None:
        self._sources = sources
        self._supervisor = supervisor
        self._policy = policy
        self._context = context
        self._batcher = Batcher(sources, policy, context, self._is_stopping)
        self._runner = Runner(context, self._engine_died)
        self._engine_death: asyncio.Future[EngineDied] = asyncio.get_running_loop().create_future()
        self._ending: asyncio.Task[None] | None = None  # with until_empty

    async def run(self) -> EngineDied | None:
        """Claim and run until the drain starts, then stop cleanly; restart an engine that dies.

        Returns:
            The engine's last death if the worker gave the engine up; None after a drain.
        """
        drain, death = self._context.drain, None
        try:
            if await drain.unless_started(self._start_sources()):
                self._ending = self._watch_queues()
                death = await self._run_until_death()
            while death and await self._revive(death):
                self._context.brake.engine_restarted()
                death = await self._run_until_death()
        finally:
            await end(self._ending)
            await asyncio.gather(*(source.stop() for source in self._sources))
        return None if drain.is_draining else death

    async def _start_sources(self) -> bool:
        for source in self._sources:
            await source.start()
        self._context.liveness.note_waiting(None)
        return True

    def _watch_queues(self) -> "asyncio.Task[None] | None":
        """With `until_empty`, start to watch whether the queues are empty."""
        settings, liveness = self._context.settings, self._context.liveness
        if not settings.until_empty:
            return None
        rule = EmptyRule(settings.first_request_timeout_s, settings.lease_s, time.monotonic())
        reads = [source.stats for source in self._sources]
        watch = UntilEmpty(
            reads, rule, self._context.load, self._context.drain, lambda: liveness.num_settled
        )
        return asyncio.create_task(watch.watch())

    async def _feed_engine(self) -> None:
        """Claim and start batch after batch; each started request settles itself."""
        while not self._is_stopping():
            batch = await self._batcher.next_batch()
            for group in batch_policy.groups(self._policy, batch):
                self._start(group)
                await self._wait_at_barrier()

    def _start(self, group: Sequence[ClaimedRequest]) -> None:
        if len(group) > 1 and self._context.admission.has_gulps:
            self._context.engine.expect_group(len(group))
        for request in group:
            if not self._is_stopping():
                self._runner.start(request)

    async def _wait_at_barrier(self) -> None:
        """Wait until nothing runs, if the policy has a barrier between two batches."""
        while self._policy.has_barrier and self._context.load.num_running:
            if self._is_stopping():
                return
            await self._batcher.wait_for_change()

    async def _run_until_death(self) -> EngineDied | None:
        """Feed the engine until it dies or the drain is over; return its death, or None."""
        self._engine_death = asyncio.get_running_loop().create_future()
        drain, load = self._context.drain, self._context.load
        watching = asyncio.create_task(self._watch_engine())
        feeding = asyncio.create_task(self._feed_engine())
        draining = asyncio.create_task(drain.started.wait())
        ends: list[asyncio.Future[Any]] = [feeding, *self._failures, draining, self._engine_death]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            load.wake()
            if not self._engine_death.done():
                await drain.until_over(load.idle)
            # A running claim may still return requests.
            await asyncio.wait([feeding], timeout=STOP_STEP_S)
        finally:
            await end(feeding, draining, watching)
        if tasks := [task for source in self._sources for task in source.cancel_running()]:
            await asyncio.wait(tasks, timeout=STOP_STEP_S)
        _raise_failures(feeding, *self._failures)
        return self._engine_death.result() if self._engine_death.done() else None

    async def _revive(self, death: EngineDied) -> bool:
        """Report the death to the queues while the engine restarts; return whether it lives."""
        self._context.load.narrow_suspects()
        evidence = {
            "error": str(death)[:MAX_REASON_CHARS].encode(errors="replace").decode(),
            "num_in_flight": sum(source.num_started for source in self._sources),
            **self._context.engine.evidence(),
        }
        for source in self._sources:
            source.note_death(evidence)
        reporting = asyncio.create_task(self._context.drain.unless_started(self._report_death()))
        num_settled = self._context.liveness.num_settled
        reviving = asyncio.create_task(self._supervisor.revive(death, num_settled))
        both: asyncio.Future[Any] = asyncio.gather(reviving, reporting)
        try:
            await asyncio.wait([both, *self._failures], return_when=asyncio.FIRST_COMPLETED)
            _raise_failures(*self._failures)
            await both
            return reviving.result()
        finally:
            await end(reviving, reporting)

    async def _report_death(self) -> None:
        for source in self._sources:
            await source.report_death()

    def _is_stopping(self) -> bool:
        return self._context.drain.is_draining or self._engine_death.done()

    async def _watch_engine(self) -> None:
        self._engine_died(await self._supervisor.watch())

    def _engine_died(self, death: EngineDied) -> None:
        """Note the engine's death; later reports of the same death change nothing."""
        if not self._engine_death.done():
            self._engine_death.set_result(death)

    @property
    def _failures(self) -> "list[asyncio.Future[None]]":
        """Futures that end only with an error; the end of an idle worker comes after its drain."""
        ending = [self._ending] if self._ending else []
        return [*(source.failed for source in self._sources), *ending]


def _raise_failures(*futures: "asyncio.Future[None]") -> None:
    for future in futures:
        if future.done() and not future.cancelled():
            future.result()
