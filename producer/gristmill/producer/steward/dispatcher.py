"""The thread that enqueues an RQ job for each batch that is due.

Every steward has one, and none leads.

The queue's Redis records which batches are due. A job only names a batch. An extra job does no
harm, because the batch's lease goes to one steward. A lost job is enqueued again.
"""

import asyncio
import threading
import time
from collections.abc import Callable

import structlog
from redis.exceptions import RedisError

from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.steward.rq_queue import JobQueue, batch_of, is_webhook
from gristmill.producer.steward.settings import StewardSettings
from gristmill.producer.steward.time_slice import TimeSlice

log = structlog.get_logger()

BELL_S = 1.0
"""Longest wait for the doorbell, the list that wakes a dispatcher; after it the dispatcher looks
anyway."""

ANNOUNCE_LOOK_S = 60.0
"""Seconds between two looks at a batch whose webhook is not delivered; RQ repeats the webhook in
between."""

WEBHOOK_WAIT_S = 1.0
"""Delay of a webhook while another waits in RQ, so that slow receivers do not delay the batches of
other tenants."""

MAX_WAITING = 32
"""Number of waiting jobs from which the dispatcher reads no due batches, so a thousand cost as
little as 32."""


class Dispatcher:
    """Enqueues the jobs that are due until the process stops.

    Args:
        settings: The steward's settings.
        jobs: The RQ queue, over a connection that only this thread uses.
        time_slice: Ends the thread; receives the number of jobs that wait.
        on_wait: Called with the error while Redis does not answer.

    Attributes:
        last_look_s: Monotonic clock at the last look for due batches.
    """

    def __init__(
        self,
        settings: StewardSettings,
        jobs: JobQueue,
        time_slice: TimeSlice,
        on_wait: Callable[[Exception], None],
    ) -> None:
        self._settings = settings
        self._jobs = jobs
        self._time_slice = time_slice
        self._on_wait = on_wait
        self._thread = threading.Thread(target=self._run, name="gristmill-dispatcher", daemon=True)
        self.last_look_s = time.monotonic()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait until the thread ends, which follows `time_slice.stop()`.

        Return at once if it never started.
        """
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        asyncio.run(self._dispatch())

    async def _dispatch(self) -> None:
        async with BatchStore.from_settings(self._settings) as store:
            while not self._time_slice.is_stopping:
                self.last_look_s = time.monotonic()
                try:
                    await self._look(store)
                    await self._wait_for_bell(store)
                except (RedisError, OSError) as error:
                    self._on_wait(error)
                    await asyncio.sleep(BELL_S)
                except Exception:  # without this thread, no batch goes on
                    log.exception("dispatch.failed")
                    await asyncio.sleep(BELL_S)
            self._jobs.close()

    async def _look(self, store: BatchStore) -> None:
        """Enqueue the jobs that are due now.

        RQ's calls block the event loop, which runs nothing else.
        """
        self._jobs.sweep(self._settings.sweep_interval_s)
        waiting = self._jobs.waiting()
        if not any(map(is_webhook, waiting)):
            self._jobs.enqueue_retry()
        self._time_slice.num_waiting = len(waiting)
        if len(waiting) < MAX_WAITING:
            await self._enqueue_due(store, waiting)

    async def _enqueue_due(self, store: BatchStore, waiting: list[str]) -> None:
        has_job = {batch_of(job_id) for job_id in waiting}
        has_webhook = any(map(is_webhook, waiting))
        for work in await store.due.batches(2 * MAX_WAITING):
            if work.phase != "announce":
                if work.batch not in has_job:
                    self._jobs.work_on(work.batch, work.phase, work.num_slices)
            elif has_webhook:
                await store.due.wake(work.batch, WEBHOOK_WAIT_S)
            else:
                has_webhook = True
                await store.due.wake(work.batch, ANNOUNCE_LOOK_S)
                self._jobs.announce(work.batch)

    async def _wait_for_bell(self, store: BatchStore) -> None:
        queue = store.queue
        await queue.redis.blpop([queue.keys.steward_doorbell], timeout=BELL_S)
