"""The worker's loop: claim -> admit -> run -> settle. There is no barrier unless the policy has one.

`shift.py` wires it. Requests come in from the queues (`feed.py`), gathered as the policy wants
(`gathering.py`); what is claimed starts on the engine at once (`runner.py`). The loop outlives the
engine: at a death each queue is told what was in flight, under the same lease, and the loop goes on when
the engine is back.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gristmill.shared.errors import EngineDied
from gristmill.shared.queue import Queue
from gristmill.shared.tasks import end
from gristmill.worker import batch_policy
from gristmill.worker.admission.room import Admission
from gristmill.worker.batcher import Gatherer
from gristmill.worker.drain import Drain
from gristmill.worker.in_flight import Running
from gristmill.worker.liveness import Progress
from gristmill.worker.queue_source import Feed
from gristmill.worker.settings import WorkerSettings
from gristmill.worker.supervisor import Supervisor

STOP_STEP_S = 0.5
"""Longest wait for a claim under way, and for aborted requests to leave the engine."""

MAX_REASON_CHARS = 500

OpenQueue = Callable[[], Queue]
Settling = Sequence["asyncio.Task[None]"]


class Worker:
    """Feeds one engine from its queues.

    Args:
        sources: What opens each queue, and the queue's weight.
        supervisor: Of a started engine.
        policy: When to claim and how much.
        settings: Backoff and limits.
        drain: Tells when to stop.
        admission: What the engine has room for.
        progress: Told of Redis, and when claims begin.
        facts: What the engine serves, for the registration.
    """

    def __init__(
        self,
        sources: Sequence[tuple[OpenQueue, int]],
        supervisor: Supervisor,
        policy: batch_policy.BatchPolicy,
        settings: WorkerSettings,
        drain: Drain,
        *,
        admission: Admission,
        progress: Progress,
        facts: Mapping[str, str | int],
    ) -> None:
        self._supervisor = supervisor
        self._policy = policy
        self._drain = drain
        self._progress = progress
        self._running = Running()
        self._feeds = [
            Feed(
                open_queue,
                weight,
                supervisor.engine,
                self._running,
                settings,
                admission=admission,
                drain=drain,
                progress=progress,
                facts=facts,
                died=self._engine_died,
            )
            for open_queue, weight in sources
        ]
        self._gatherer = Gatherer(
            self._feeds,
            policy,
            settings,
            running=self._running,
            admission=admission,
            is_stopping=self._is_stopping,
        )
        self._engine_death: asyncio.Future[EngineDied] = asyncio.get_running_loop().create_future()

    async def run(self) -> EngineDied | None:
        """Claim and run until told to drain, through the deaths of the engine; then stop cleanly.

        Returns:
            The death after which the engine was given up, or None after a drain.
        """
        settling = [asyncio.create_task(feed.runner.settler.run()) for feed in self._feeds]
        death = None
        try:
            if await self._drain.unless_started(self._open()):
                death = await self._live(settling)
            while death and await self._survive(death, settling):
                death = await self._live(settling)
        finally:
            await asyncio.gather(*(feed.stop() for feed in self._feeds))
            await end(*settling)
            await asyncio.gather(*(feed.close() for feed in self._feeds))
        return None if self._drain.is_draining else death

    async def _open(self) -> bool:
        for feed in self._feeds:
            await feed.open()
        self._progress.wait_for(None)
        return True

    async def _live(self, settling: Settling) -> EngineDied | None:
        """Feed the engine until the drain begins or the engine dies, and let what can end do so."""
        self._engine_death = asyncio.get_running_loop().create_future()
        watching = asyncio.create_task(self._watch())
        feeding = asyncio.create_task(self._feed())
        draining = asyncio.create_task(self._drain.started.wait())
        ends: list[asyncio.Future[Any]] = [feeding, *settling, draining, self._engine_death]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            self._running.changed.set()
            if not self._engine_death.done():
                await self._drain.until_over(self._running.idle)
            # A claim under way may still bring requests.
            await asyncio.wait([feeding], timeout=STOP_STEP_S)
        finally:
            await end(feeding, draining, watching)
        if tasks := [task for feed in self._feeds for task in feed.held.cancel(feed.held.runs)]:
            await asyncio.wait(tasks, timeout=STOP_STEP_S)
        _raise_failures(feeding, *settling)
        return self._engine_death.result() if self._engine_death.done() else None

    def _is_stopping(self) -> bool:
        return self._drain.is_draining or self._engine_death.done()

    async def _watch(self) -> None:
        self._engine_died(await self._supervisor.watch())

    def _engine_died(self, death: EngineDied) -> None:
        """Note the engine's death; the first report counts."""
        if not self._engine_death.done():
            self._engine_death.set_result(death)

    async def _feed(self) -> None:
        while not self._is_stopping():
            batch = await self._gatherer.gather()
            for group in batch_policy.groups(self._policy, batch):
                for item in group:
                    if not self._is_stopping():
                        item.feed.runner.admit(item.claimed)
                while (
                    self._policy.has_barrier
                    and self._running.num_requests
                    and not self._is_stopping()
                ):
                    await self._gatherer.wait_for_change()

    async def _survive(self, death: EngineDied, settling: Settling) -> bool:
        """Give up what was in flight while the engine is built anew; True if it lives again."""
        self._running.narrow()
        evidence = {
            "error": str(death)[:MAX_REASON_CHARS].encode(errors="replace").decode(),
            "num_in_flight": sum(
                run.task is not None for feed in self._feeds for run in feed.held.runs
            ),
            **self._supervisor.engine.evidence(),
        }
        for feed in self._feeds:
            feed.note_death(evidence)
        giving_up = self._drain.unless_started(self._give_up())
        num_settled = sum(feed.runner.num_settled for feed in self._feeds)
        reviving = self._supervisor.revive(death, num_settled)
        steps = asyncio.create_task(reviving), asyncio.create_task(giving_up)
        both: asyncio.Future[Any] = asyncio.gather(*steps)
        ends: list[asyncio.Future[Any]] = [both, *settling]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            _raise_failures(*settling)
            await both
            return steps[0].result()
        finally:
            await end(*steps)

    async def _give_up(self) -> None:
        for feed in self._feeds:
            await feed.give_up()


def _raise_failures(*tasks: "asyncio.Task[None]") -> None:
    for task in tasks:
        if task.done() and not task.cancelled():
            task.result()
