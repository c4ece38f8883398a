"""The thread that picks the next piece of work: of the tenant to which stewards gave the least time.

Every steward has one, and none leads.

The queue's Redis records which batches are due, and the time of each tenant. A job only names a
batch. An extra job does no harm, because the batch's lease goes to one steward. A lost job is
enqueued again. At most one job waits in RQ, so that the next choice is a late one.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import structlog
from redis.exceptions import RedisError
from ulid import ULID

from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.steward.concurrent_work import ConcurrentWork
from gristmill.producer.steward.rq_queue import JobQueue
from gristmill.producer.steward.settings import StewardSettings
from gristmill.producer.steward.time_slice import TimeSlice
from gristmill.producer.submit_lease import Hold, SubmitLease

log = structlog.get_logger()

BELL_S = 1.0
"""Longest wait for the doorbell, the list that wakes a dispatcher; after it the dispatcher looks
anyway."""

MAX_WAITING = 1
"""Jobs that may wait in RQ, where they no longer give way to another tenant's."""

MAX_LOOKED_AT = 8
"""Due batches that one look reads; all but the first may have a job that another dispatcher just made."""

MAX_THREADS = 128
"""Threads for DNS and storage: more than all concurrent work needs, so that no look-up waits for another's."""


class Dispatcher:
    """Enqueues the jobs and starts the concurrent work that are due, until the process stops.

    Args:
        settings: The steward's settings.
        jobs: The RQ queue, over a connection that only this thread uses.
        time_slice: Ends the thread; receives the number of jobs that wait.
        on_wait: Called with the error while Redis does not answer.
        works: The kinds of work that run in this thread.

    Attributes:
        last_look_s: Monotonic clock at the last look for due batches.
    """

    def __init__(
        self,
        settings: StewardSettings,
        jobs: JobQueue,
        time_slice: TimeSlice,
        on_wait: Callable[[Exception], None],
        works: Sequence[ConcurrentWork],
    ) -> None:
        self._settings = settings
        self._jobs = jobs
        self._time_slice = time_slice
        self._on_wait = on_wait
        self._works = works
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
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(MAX_THREADS))
        async with BatchStore.from_settings(self._settings) as store:
            lease = SubmitLease(store.queue, f"steward-{ULID()}")
            hold = Hold(lease)
            while not self._time_slice.is_stopping:
                self.last_look_s = time.monotonic()
                try:
                    async with asyncio.timeout(BELL_S):  # a lease waits while Redis is away
                        await _hold_while_batches_run(store, hold)
                    await self._look(store)
                    await self._wait_for_bell(store)
                except (RedisError, OSError) as error:
                    self._on_wait(error)
                    await asyncio.sleep(BELL_S)
                except Exception:  # without this thread, no batch goes on
                    log.exception("dispatch.failed")
                    await asyncio.sleep(BELL_S)
            for work in self._works:
                await work.stop()
            await lease.aclose()

    async def _look(self, store: BatchStore) -> None:
        """Start what is due now. RQ's calls block, so they run in a thread."""
        for work in self._works:
            await work.start_due(store)
        await asyncio.to_thread(self._jobs.sweep, self._settings.sweep_interval_s)
        self._time_slice.num_waiting = await self._enqueue_due(store)

    async def _enqueue_due(self, store: BatchStore) -> int:
        """Enqueue jobs until `MAX_WAITING` wait; return the number of those that wait."""
        num_waiting = await asyncio.to_thread(self._jobs.num_waiting)
        due = []
        if num_waiting < MAX_WAITING:
            due = await store.due.batches("steps", limit=MAX_LOOKED_AT)
        for each in due:
            if num_waiting >= MAX_WAITING:
                break
            add = partial(self._jobs.work_on, each.batch, each.phase, each.num_slices)
            if await asyncio.to_thread(add):
                await store.due.begin(each)
                num_waiting = await asyncio.to_thread(self._jobs.num_waiting)
        return num_waiting

    async def _wait_for_bell(self, store: BatchStore) -> None:
        queue = store.queue
        await queue.redis.blpop([queue.keys.steward_doorbell], timeout=BELL_S)


async def _hold_while_batches_run(store: BatchStore, hold: Hold) -> None:
    """Tell the workers of the queue whether batches still have lines to submit or to collect."""
    if await store.due.has_work("steps"):
        await hold.take()
    else:
        hold.give_back()
