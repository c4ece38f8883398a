"""Collect the results of a batch from the queue, and give their lines a row."""

import time
from collections.abc import Sequence
from typing import Any

from gristmill.producer.batches.lifecycle.leased_batch import LeasedBatch
from gristmill.producer.batches.lifecycle.line_tracker import LineTracker, number_of
from gristmill.producer.batches.lifecycle.slice_clock import SliceClock
from gristmill.shared.chunking import chunks
from gristmill.shared.operations import IDS_A_CALL
from gristmill.shared.queue import Queue
from gristmill.shared.results import Result

MAX_RESULTS_A_CALL = 128
RESULT_BYTES_A_CALL = 8 * 2**20

REPLY_WAIT_S = 0.25
"""Longest wait for the next reply; a cancel or the end of the window is noticed as late as this."""

CLOCKS_DIFFER_S = 2.0
"""Largest difference between the clocks of Redis and of a steward."""


class ResultCollector:
    """Moves results from the queue to the rows of the tracker.

    Args:
        queue: Queue of the requests.
        leased: The batch.
        tracker: Gets the results.
        clock: The clock of the slice.
    """

    def __init__(
        self, queue: Queue, leased: LeasedBatch, tracker: LineTracker, clock: SliceClock
    ) -> None:
        self._queue = queue
        self._leased = leased
        self._tracker = tracker
        self._clock = clock
        self._reply_key = queue.keys.finished(leased.id)

    async def finished_ids(self) -> list[str]:
        """Return ids that finished; if nothing else is to do, wait up to `REPLY_WAIT_S` for one."""
        redis: Any = self._queue.redis
        if found := await redis.lpop(self._reply_key, IDS_A_CALL):
            return [request_id.decode() for request_id in found]
        tracker = self._tracker
        if tracker.is_done or (tracker.closing and not tracker.is_read):
            return []
        first = await redis.blpop([self._reply_key], timeout=REPLY_WAIT_S)
        return [first[1].decode()] if first else []

    async def collect(self, ids: Sequence[str]) -> None:
        """Give the lines of these results their row; ids that are not outstanding are ignored.

        If a result shows that the completion window is over, the tracker is closing as expired.
        """
        known = [found for found in ids if number_of(found) in self._tracker.outstanding]
        if known:
            self._clock.mark("work")
        while known:
            number = self._tracker.results_within(RESULT_BYTES_A_CALL, MAX_RESULTS_A_CALL)
            some_ids, known = known[:number], known[number:]
            results = await self._queue.results(some_ids)
            if self._is_window_over(results):
                self._tracker.closing = "expired"  # before their rows, which say so
            for result in results:
                if result and self._tracker.finish(result):
                    self._clock.count_finished()

    async def forget_written(self) -> None:
        """Delete the results whose rows are committed now."""
        written, self._tracker.written_ids = self._tracker.written_ids, []
        for ids in chunks(written, IDS_A_CALL):
            await self._queue.forget(ids)
        if self._tracker.is_done:
            await self._queue.redis.unlink(self._reply_key)

    def _is_window_over(self, results: Sequence[Result | None]) -> bool:
        """Return True if results show that the completion window is over.

        The queue may notice this before the steward. The deadline of a request is the end of the
        window, unless its line has one of its own.
        """
        is_any_expired = any(result and result.status == "expired" for result in results)
        window_ends_s = self._leased.record.expires_at - CLOCKS_DIFFER_S
        return not self._tracker.closing and is_any_expired and time.time() >= window_ends_s
