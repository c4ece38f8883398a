"""Execute a batch: submit its lines a window at a time, and write the rows of their results.

A line is *outstanding* from the commit that names it until the commit that writes its row. A steward
that takes over begins at the last commit. It submits again what may be lost, and the queue knows those
requests by their ids. A result is deleted only after its row is committed. So no line runs twice, and
none has two rows.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import structlog

from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.batches.lifecycle.leased_batch import LeasedBatch
from gristmill.producer.batches.lifecycle.line_submitter import LineSubmitter
from gristmill.producer.batches.lifecycle.line_tracker import LineTracker
from gristmill.producer.batches.lifecycle.result_collector import ResultCollector
from gristmill.producer.batches.lifecycle.row_buffer import MAX_BUFFER_BYTES, RowBuffer
from gristmill.producer.batches.lifecycle.skipped_lines import (
    LinesOfOthers,
    SkippedLines,
    skipped_lines,
)
from gristmill.producer.batches.lifecycle.slice_clock import SliceClock
from gristmill.producer.batches.lifecycle.window import commit_interval_s
from gristmill.producer.batches.objects import BatchError, BatchErrors, Closing
from gristmill.producer.batches.rows import Line, lines_of
from gristmill.shared.chunking import chunks
from gristmill.shared.errors import BudgetUsedUp, StorageQuotaReached
from gristmill.shared.operations import IDS_A_CALL

log = structlog.get_logger()

LOOK_S = 1.0
"""Seconds between two looks for a cancel; each look also renews the lease."""

RECONCILE_S = 5.0
"""Seconds between two comparisons of the outstanding lines with the queue."""

BUDGET_LOOK_S = 30.0
"""Seconds between two looks at a batch that only waits for its tenant's token budget."""

MAX_SLICE_S = 300.0
"""Longest slice, even if `may_go_on` would allow more."""

MAX_UNCOMMITTED = 5_000
"""Rows after which a commit is due; their results are in Redis until then."""


MayGoOn = Callable[[float], bool]
"""Callback that takes the seconds since the slice last had work. It is called before each step, and
False ends the slice."""


class Execution:
    """One slice of work on a batch in progress.

    Args:
        store: The batches of the queue.
        leased: The batch.
        input_path: Path of the input in the storage.
    """

    def __init__(self, store: BatchStore, leased: LeasedBatch, input_path: str) -> None:
        self._store = store
        self._queue = store.queue
        self._leased = leased
        self._input_path = input_path
        self._waiting = leased.record.waiting
        self._clock = SliceClock()
        self._tracker = LineTracker(leased.state, RowBuffer(store.storage, leased.id))
        self._submitter = LineSubmitter(store, leased, self._tracker, self._clock, input_path)
        self._collector = ResultCollector(store.queue, leased, self._tracker, self._clock)

    async def run(self, may_go_on: MayGoOn) -> None:
        """Work until every line has its row, or until other batches should have their turn.

        Args:
            may_go_on: Called before each step; False ends the slice.

        Raises:
            LeaseLost, redis.exceptions.RedisError, OSError: The last commit stands; the next slice
                goes on from there.
        """
        checkpoint = self._leased.state.checkpoint
        read_skipped = partial(skipped_lines, self._store.storage, checkpoint)
        skipped = await self._leased.run_blocking(read_skipped)
        tracker = self._tracker
        with self._store.storage.open(self._input_path, tracker.offset) as stream:
            lines = lines_of(
                stream, self._submitter.max_line_bytes, number=tracker.line, offset=tracker.offset
            )
            unread = self._unread(lines, skipped)
            await self._look()
            await self._reconcile()
            while not tracker.is_done and not self._only_waits and self._has_time(may_go_on):
                await self._step(unread)
        await self._commit()
        if self._only_waits:
            record = self._leased.record
            await self._store.due.wake("steps", record.tenant, record.id, BUDGET_LOOK_S)

    @property
    def _only_waits(self) -> bool:
        """True if nothing is left to do until the tenant's budget renews."""
        is_idle = not self._tracker.outstanding and not self._submitter.waiting_lines()
        return self._submitter.is_held and is_idle and not self._tracker.is_done

    def _has_time(self, may_go_on: MayGoOn) -> bool:
        return may_go_on(self._clock.since_s("work")) and self._clock.age_s < MAX_SLICE_S

    def _unread(
        self, lines: Iterator[Line], skipped: SkippedLines | LinesOfOthers
    ) -> Iterator[Line]:
        """Yield the lines that have no row yet, and note in the tracker how far the input is read."""
        for line in lines:
            self._tracker.line, self._tracker.offset = line.number, line.end
            if line.number not in skipped:
                yield line
        self._tracker.is_read = True

    async def _step(self, unread: Iterator[Line]) -> None:
        if self._clock.since_s("look") > LOOK_S:
            await self._look()
        if self._clock.since_s("reconcile") > RECONCILE_S:
            await self._reconcile()
        if self._tracker.closing:
            await self._submitter.end_unread(unread)
        else:
            await self._submitter.fill(unread)
        await self._collect(await self._collector.finished_ids())
        if self._is_commit_due():
            await self._commit()

    async def _look(self) -> None:
        """Renew the lease, read the workers' load, and close the batch after a cancel or expiry."""
        self._clock.mark("look")
        await self._leased.extend()
        await self._submitter.refresh()
        if self._tracker.closing:
            return
        if await self._store.records.is_cancelled(self._leased.id):
            await self._leased.reload()  # the next commit keeps `cancelling_at`
            await self._close("cancelled")
        elif time.time() >= self._leased.record.expires_at:
            await self._close("expired")
        else:
            await self._check_storage()
            if not self._tracker.closing:
                await self._check_budget()

    async def _check_budget(self) -> None:
        """Hold further lines while a token budget of the tenant is used up, or close the batch as failed."""
        tenant = await self._store.tenants.get(self._leased.record.tenant)
        try:
            if tenant:
                await self._store.budgets.check(tenant)
        except BudgetUsedUp as error:
            self._submitter.is_held = True
            if tenant and tenant.over_budget == "fail":
                await self._fail("token_budget_used_up", error)
            else:
                self._note_wait(str(error))
        else:
            self._submitter.is_held, self._waiting = False, None

    def _note_wait(self, reason: str) -> None:
        """Note why no further lines are submitted. The log says so once: the commit keeps the note for later slices."""
        if self._waiting is None:
            record, queue = self._leased.record, self._queue.keys.queue
            log.warning("batch.waits_for_budget", batch=record.id, tenant=record.tenant, queue=queue, reason=reason)  # fmt: skip
        self._waiting = BatchError(code="token_budget_used_up", message=reason)

    async def _fail(self, code: str, error: Exception) -> None:
        self._tracker.errors = BatchErrors(data=(BatchError(code=code, message=str(error)),))
        await self._close("failed")

    async def _check_storage(self) -> None:
        """Close the batch as failed if its tenant's storage quota is used up; its owner may retry the rest later."""
        try:
            await self._store.files.use.check_room(self._leased.record.tenant)
        except StorageQuotaReached as error:
            await self._fail("storage_quota_reached", error)

    async def _close(self, closing: Closing) -> None:
        """Cancel what is outstanding; from now on, lines that are unfinished get an error row."""
        self._tracker.closing = closing
        self._submitter.is_held, self._waiting = False, None
        self._submitter.drop_waiting()
        await self._queue.cancel([self._tracker.id_of(n) for n in self._tracker.outstanding])
        await self._reconcile()

    async def _reconcile(self) -> None:
        """Compare the outstanding lines with the queue: collect results, submit missing lines.

        The notice of a result may be lost, or a steward may have died between commit and submit.
        """
        self._clock.mark("reconcile")
        await self._queue.expire()
        waiting = self._submitter.waiting_lines()
        finished, unknown = await self._where_are(
            [number for number in self._tracker.outstanding if number not in waiting]
        )
        await self._collect([self._tracker.id_of(number) for number in finished])
        await self._submitter.restore([n for n in unknown if n in self._tracker.outstanding])

    async def _where_are(self, numbers: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the lines among these that have a result, and those that the queue does not know."""
        finished: list[int] = []
        unknown: list[int] = []
        for chunk in chunks(numbers, IDS_A_CALL):
            states = await self._queue.status([self._tracker.id_of(number) for number in chunk])
            for number, (state, _) in zip(chunk, states, strict=True):
                if state == "done":
                    finished.append(number)
                elif state == "unknown":
                    unknown.append(number)
        return finished, unknown

    async def _collect(self, ids: Sequence[str]) -> None:
        was_closing = self._tracker.closing is not None
        await self._collector.collect(ids)
        if self._tracker.closing and not was_closing:
            await self._close(self._tracker.closing)

    def _is_commit_due(self) -> bool:
        if self._tracker.is_done:  # `run` commits
            return False
        num_bytes = self._tracker.rows.num_bytes
        if num_bytes > MAX_BUFFER_BYTES or len(self._tracker.written_ids) >= MAX_UNCOMMITTED:
            return True
        age_s = time.time() - (self._leased.record.in_progress_at or 0)
        return num_bytes > 0 and self._clock.since_s("commit") > commit_interval_s(age_s)

    async def _commit(self) -> None:
        """Write rows, record and checkpoint; then delete the results whose rows are written."""
        await self._leased.run_blocking(self._tracker.rows.flush)
        record, checkpoint, parts = self._tracker.take_changes(self._leased.state)
        record = record.model_copy(update={"waiting": self._waiting})
        await self._leased.commit(record, checkpoint, parts=parts)
        self._clock.mark("commit")
        await self._collector.forget_written()
