"""Show the progress of a batch until its end, and report what delays it."""

import asyncio
import time

from gristmill.producer.batches.batch_service import Batches
from gristmill.producer.batches.batch_state import BatchState
from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.batches.child_batches import children_of
from gristmill.producer.batches.objects import BatchRecord
from gristmill.producer.commands.display import display
from gristmill.producer.commands.hold_ups import LOOK_S, HoldUps
from gristmill.producer.commands.tally import Tally
from gristmill.shared.cli import say

UNTAKEN_S = 5.0
"""Seconds that a batch may be `validating` before the command reports what delays it."""


def untaken(queue: str) -> str:
    """Return the message for a batch that no steward has taken up."""
    return f"no steward has taken the batch up yet; start one: gristmill steward --queue {queue}"


class BatchWatch:
    """Shows the progress of batches of one tenant.

    Args:
        batches: The batches of the queue.
        tenant: Name of the tenant.
    """

    def __init__(self, batches: Batches, tenant: str) -> None:
        self._batches = batches
        self._tenant = tenant
        self._hold_ups: dict[str, HoldUps] = {}

    @property
    def _is_served(self) -> bool:
        """True if workers of some queue may claim lines."""
        return not self._hold_ups or any(each.is_served for each in self._hold_ups.values())

    async def watch(self, batch_id: str) -> BatchRecord:
        """Show progress until a batch has ended, and return the ended batch."""
        start_s = time.monotonic()
        record = await self._until_begun(batch_id)
        tally = Tally(
            record.request_counts.total, time.monotonic(),
            num_finished=record.request_counts.finished, num_failed=_num_failed(record),
            output_tokens=record.usage.output_tokens,
        )  # fmt: skip
        told, shown_s, num_failed_before = "", 0.0, tally.num_failed
        with display() as shown:
            while not record.is_final:
                await asyncio.sleep(min(shown.interval_s, LOOK_S))
                record = await self._batches.batch(self._tenant, batch_id)
                _count(record, tally, num_failed_before)
                told = await self._tell_problem(batch_id, told)
                tally.sample(time.monotonic(), is_served=self._is_served)
                if record.is_final or time.monotonic() - shown_s >= shown.interval_s:
                    shown_s = time.monotonic()
                    shown.show(tally.progress(note=record.status))
        say(f"{record.id} {record.status} after {time.monotonic() - start_s:,.1f} s")
        return record

    async def _until_begun(self, batch_id: str) -> BatchRecord:
        start_s = time.monotonic()
        told = ""
        while (record := await self._batches.batch(self._tenant, batch_id)).status == "validating":
            if time.monotonic() - start_s > UNTAKEN_S:
                told = await self._tell_problem(batch_id, told)
            await asyncio.sleep(0.2)
        return record

    async def _tell_problem(self, batch_id: str, told: str) -> str:
        """Report what delays a batch, and return it.

        Args:
            batch_id: Id of the batch.
            told: Delay that was reported last, which is not repeated; "" for none.
        """
        store = self._batches.store
        state = await store.records.state(batch_id, self._tenant)
        problem = await self._problem(store, state)
        for child in await children_of(store, state.record):
            if child.state and not child.is_over and not _is_new(child.state):
                problem = await self._problem(child.store, child.state) or problem
        if problem and problem != told:
            say(problem)
        return problem

    async def _problem(self, store: BatchStore, state: BatchState) -> str:
        """Return what keeps stewards from a batch, or from a child of it; report what delays its lines."""
        queue = store.queue.keys.queue
        if not state.num_slices:
            return untaken(queue)
        if state.phase == "execute":
            hold_ups = self._hold_ups.setdefault(queue, HoldUps(queue))
            hold_ups.tell(await store.queue.stats(), state.record.id)
        return state.problem and f"a steward failed and will try again: {state.problem}"


def _is_new(child: BatchState) -> bool:
    """Return True while a steward may yet be about to take a child up."""
    return time.time() < (child.record.in_progress_at or 0) + UNTAKEN_S


def _count(record: BatchRecord, tally: Tally, num_failed_before: int) -> None:
    tally.num_finished, tally.num_failed = record.request_counts.finished, _num_failed(record)
    tally.num_bad = tally.num_failed - num_failed_before  # so that failures are part of no rate
    tally.output_tokens = record.usage.output_tokens


def _num_failed(record: BatchRecord) -> int:
    return record.request_counts.finished - record.request_counts.completed
