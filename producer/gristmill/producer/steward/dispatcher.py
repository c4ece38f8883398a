"""The thread that makes RQ jobs of batches that are due; every steward has one, and none leads.

What is due stands in the queue's Redis. A job only says whom to look at, so an extra one does no harm
(the batch's lease admits one steward), and a lost one is made again.
"""

import asyncio
import threading
import time
from collections.abc import Callable

import structlog
from redis.exceptions import RedisError

from gristmill.producer.batches.service import Batches
from gristmill.producer.steward.schedule import Schedule, batch_of, is_webhook
from gristmill.producer.steward.settings import StewardSettings
from gristmill.producer.steward.turn import Turn

log = structlog.get_logger()

BELL_S = 1.0
"""Longest wait for the bell before a look without it."""

ANNOUNCE_LOOK_S = 60.0
"""How often a batch whose webhook is not delivered is looked at; RQ does the retries in between."""


WEBHOOK_WAIT_S = 1.0
"""One webhook waits at a time, or slow receivers would hold up everybody's batches; the others come later."""

MAX_WAITING = 32
"""Jobs that wait in RQ; what is due beyond them is not looked at, so a thousand batches cost no more."""


class Dispatcher:
    """Enqueues what is due until the process stops.

    Args:
        settings: Of this steward.
        schedule: Where to, over a connection of its own.
        turn: When to stop; is told how many jobs wait.
        tell_wait: Is told why Redis is waited for.
    """

    def __init__(
        self,
        settings: StewardSettings,
        schedule: Schedule,
        turn: Turn,
        tell_wait: Callable[[Exception], None],
    ) -> None:
        self._settings = settings
        self._schedule = schedule
        self._turn = turn
        self._tell_wait = tell_wait
        self._thread = threading.Thread(target=self._run, name="gristmill-dispatcher", daemon=True)
        self.last_look_s = time.monotonic()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait for the end, which follows `turn.stop()`; there is nothing to wait for if it never began."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        asyncio.run(self._dispatch())

    async def _dispatch(self) -> None:
        async with Batches.from_settings(self._settings) as batches:
            while not self._turn.is_stopping:
                self.last_look_s = time.monotonic()
                try:
                    await self._look(batches)
                    await self._wait_for_bell(batches)
                except (RedisError, OSError) as error:
                    self._tell_wait(error)
                    await asyncio.sleep(BELL_S)
                except Exception:  # whatever it is: no batch goes on without this thread
                    log.exception("dispatch.failed")
                    await asyncio.sleep(BELL_S)
            self._schedule.close()

    async def _look(self, batches: Batches) -> None:
        """Enqueue once; RQ's calls block the loop, on which nothing else runs."""
        self._schedule.sweep(self._settings.sweep_interval_s)
        waiting = self._schedule.waiting()
        if not any(map(is_webhook, waiting)):
            self._schedule.enqueue_retry()
        self._turn.num_waiting = len(waiting)
        if len(waiting) < MAX_WAITING:
            await self._enqueue_due(batches, waiting)

    async def _enqueue_due(self, batches: Batches, waiting: list[str]) -> None:
        has_job = {batch_of(job_id) for job_id in waiting}
        has_webhook = any(map(is_webhook, waiting))
        for work in await batches.registry.due(2 * MAX_WAITING):
            if work.phase != "announce":
                if work.batch not in has_job:
                    self._schedule.work_on(work.batch, work.phase, work.runs)
            elif has_webhook:
                await batches.registry.wake(work.batch, WEBHOOK_WAIT_S)
            else:
                has_webhook = True
                await batches.registry.wake(work.batch, ANNOUNCE_LOOK_S)
                self._schedule.announce(work.batch)

    async def _wait_for_bell(self, batches: Batches) -> None:
        queue = batches.queue
        await queue.redis.blpop([queue.keys.steward_bell], timeout=BELL_S)
