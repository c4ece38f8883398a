"""The work of a steward: RQ's jobs, under their short names, and what runs beside them."""

import time
from collections.abc import Sequence

from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.batches.lifecycle import advance
from gristmill.producer.steward.concurrent_work import ConcurrentWork
from gristmill.producer.steward.deliveries import Deliveries
from gristmill.producer.steward.job_registry import JobCall, JobRegistry
from gristmill.producer.steward.settings import StewardSettings
from gristmill.producer.steward.time_slice import TimeSlice

FILES_TIMEOUT_S = 6 * 3600
"""Longest time to write the files of one batch. It cannot pause, and restarts if cut off."""

WEBHOOK_MARGIN_S = 30.0
"""Time that a delivery may take beyond its exchange: a slow DNS server, a slow Redis."""


def steward_jobs(settings: StewardSettings) -> JobRegistry:
    """Return the registry of all of RQ's jobs.

    A new job needs a name here and a method in `rq_queue.py` that enqueues it.
    """
    time_slice = TimeSlice()
    jobs = Jobs(settings, time_slice)
    functions = {
        # one function under two names, which `rq info` shows
        "validate": jobs.advance,
        "execute": jobs.advance,
        "sweep": jobs.sweep,
    }
    return JobRegistry(time_slice, functions)


def concurrent_works(settings: StewardSettings, time_slice: TimeSlice) -> Sequence[ConcurrentWork]:
    """Return the kinds of work that run beside RQ's jobs.

    Args:
        settings: The steward's settings.
        time_slice: Tells that the process is stopping.
    """

    async def advance_batch(store: BatchStore, batch: str) -> None:
        await advance(store, batch, lambda _: not time_slice.is_stopping)

    return (
        ConcurrentWork(
            "files", advance_batch, max_running=4, max_a_tenant=1, timeout_s=FILES_TIMEOUT_S
        ),
        ConcurrentWork(
            "webhooks", Deliveries(settings).deliver, max_running=64, max_a_tenant=4,
            timeout_s=settings.webhook_timeout_s + WEBHOOK_MARGIN_S,
        ),
    )  # fmt: skip


class Jobs:
    """The functions of RQ's jobs.

    Args:
        settings: The steward's settings.
        time_slice: Limits the time of each job.
    """

    def __init__(self, settings: StewardSettings, time_slice: TimeSlice) -> None:
        self._settings = settings
        self._time_slice = time_slice

    async def advance(self, call: JobCall) -> None:
        """Work on a batch for one time slice, and charge the time to its tenant."""
        began_s = time.monotonic()
        async with BatchStore.from_settings(self._settings) as store:
            try:
                await advance(store, call.batch, self._time_slice.may_go_on)
                if call.name == "validate" and await self._may_execute(store, call.batch):
                    await advance(store, call.batch, self._time_slice.may_go_on)
            finally:
                record, _ = await store.records.record_and_slices(call.batch)
                if record:
                    await store.due.end("steps", record.tenant, time.monotonic() - began_s)

    async def _may_execute(self, store: BatchStore, batch: str) -> bool:
        """Return True if the slice has time for the lines of a batch that it has validated."""
        state = await store.records.state(batch)
        return state.phase == "execute" and self._time_slice.may_go_on()

    async def sweep(self, call: JobCall) -> None:
        """Delete expired files."""
        async with BatchStore.from_settings(self._settings) as store:
            await store.files.delete_expired(self._time_slice.may_go_on)
