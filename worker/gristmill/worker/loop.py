"""The worker's loop: claim what there is room for, start it, settle it. No barrier unless the batch policy has one.

`wiring.py` makes it. The batcher (`batcher.py`) claims from the queues (`queue_source.py`) what the engine has
room for. What is claimed starts on the engine at once (`runner.py`) and settles itself when it ends. The loop
outlives the engine: at a death each queue is told what was in flight, under the same lease, and the loop goes
on when the engine is back.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from gristmill.shared.errors import EngineDied
from gristmill.shared.tasks import end
from gristmill.worker import batch_policy
from gristmill.worker.batch_policy import BatchPolicy
from gristmill.worker.batcher import Batcher
from gristmill.worker.context import WorkerContext
from gristmill.worker.queue_source import QueueSource
from gristmill.worker.runner import Runner
from gristmill.worker.supervisor import Supervisor
from gristmill.worker.verdicts import MAX_REASON_CHARS

STOP_STEP_S = 0.5
"""Longest wait for a claim under way, and for aborted requests to leave the engine."""


class Worker:
    """Feeds one engine from its queues.

    Args:
        sources: The queues; not started.
        supervisor: Supervisor of the started engine.
        policy: When to claim and how much.
        context: The worker.
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

    async def run(self) -> EngineDied | None:
        """Claim and run until told to drain, through the deaths of the engine; then stop cleanly.

        Returns:
            The death after which the engine was given up, or None after a drain.
        """
        drain, death = self._context.drain, None
        try:
            if await drain.unless_started(self._start_sources()):
                death = await self._run_until_death()
            while death and await self._revive(death):
                death = await self._run_until_death()
        finally:
            await asyncio.gather(*(source.stop() for source in self._sources))
        return None if drain.is_draining else death

    async def _start_sources(self) -> bool:
        for source in self._sources:
            await source.start()
        self._context.liveness.note_waiting(None)
        return True

    async def _feed_engine(self) -> None:
        """Claim and start, batch after batch; what has started settles itself."""
        while not self._is_stopping():
            batch = await self._batcher.next_batch()
            for group in batch_policy.groups(self._policy, batch):
                for request in group:
                    if not self._is_stopping():
                        self._runner.start(request)
                await self._wait_at_barrier()

    async def _wait_at_barrier(self) -> None:
        """Wait until nothing runs, if the policy wants that between two batches."""
        while self._policy.has_barrier and self._context.load.num_running:
            if self._is_stopping():
                return
            await self._batcher.wait_for_change()

    async def _run_until_death(self) -> EngineDied | None:
        """Feed the engine until the drain begins or the engine dies, and let what can end do so."""
        self._engine_death = asyncio.get_running_loop().create_future()
        drain, load = self._context.drain, self._context.load
        watching = asyncio.create_task(self._watch_engine())
        feeding = asyncio.create_task(self._feed_engine())
        draining = asyncio.create_task(drain.started.wait())
        ends: list[asyncio.Future[Any]] = [feeding, *self._failures, draining, self._engine_death]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            load.changed.set()
            if not self._engine_death.done():
                await drain.until_over(load.idle)
            # A claim under way may still bring requests.
            await asyncio.wait([feeding], timeout=STOP_STEP_S)
        finally:
            await end(feeding, draining, watching)
        if tasks := [task for source in self._sources for task in source.cancel_running()]:
            await asyncio.wait(tasks, timeout=STOP_STEP_S)
        _raise_failures(feeding, *self._failures)
        return self._engine_death.result() if self._engine_death.done() else None

    async def _revive(self, death: EngineDied) -> bool:
        """Tell the queues of a death while the engine is built anew; return whether it lives again."""
        load = self._context.load
        load.narrow_suspects()
        evidence = {
            "error": str(death)[:MAX_REASON_CHARS].encode(errors="replace").decode(),
            "num_in_flight": sum(source.num_started for source in self._sources),
            **self._context.engine.evidence(),
        }
        for source in self._sources:
            source.note_death(evidence)
        reporting = asyncio.create_task(self._context.drain.unless_started(self._report_death()))
        reviving = asyncio.create_task(self._supervisor.revive(death, load.num_settled))
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
        """Note the engine's death; the first report counts."""
        if not self._engine_death.done():
            self._engine_death.set_result(death)

    @property
    def _failures(self) -> "list[asyncio.Future[None]]":
        return [source.failed for source in self._sources]


def _raise_failures(*futures: "asyncio.Future[None]") -> None:
    for future in futures:
        if future.done() and not future.cancelled():
            future.result()
