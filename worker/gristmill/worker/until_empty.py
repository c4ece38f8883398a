"""End a worker when its queues are empty (`gristmill worker --until-empty`), for jobs on a scheduler.

`loop.py` runs the watch beside the claims. Several workers need no agreement: each looks at the whole queue, and what
another worker has in flight is not empty.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from gristmill.shared.queue_stats import Stats
from gristmill.worker.drain import Drain
from gristmill.worker.engine_load import EngineLoad

CHECK_S = 1.0
"""Seconds between two looks of an idle worker at its queues."""

MAX_SILENCE = 0.8
"""Share of a lease without any heartbeat that means that Redis was away (`lua/includes/leases.lua`)."""

COUNTERS_OF_ARRIVALS = ("submitted", "inbox_taken")
"""Counters that change when a request comes, also one that has ended before the next look."""

ReadStats = Callable[[], Awaitable[Stats]]


class EmptyRule:
    """Says when a worker may end; pure.

    Args:
        first_request_timeout_s: Longest wait for a first request in seconds.
        lease_s: Seconds of a worker's lease.
        begin_s: Moment at which the worker began to claim.
    """

    def __init__(self, first_request_timeout_s: float, lease_s: float, begin_s: float) -> None:
        self._first_request_timeout_s = first_request_timeout_s
        self._max_silence_ms = lease_s * 1000 * MAX_SILENCE
        self._begin_s = begin_s
        self._first_arrivals: list[list[int]] | None = None
        self._had_work = False

    def reason(self, views: Sequence[Stats], now_s: float, *, has_settled: bool) -> str | None:
        """Return why the worker ends now, or None.

        While Redis is away, leases of producers run out although the producers live. So nothing counts as empty from a
        silence of all workers until the end of the grace that follows it.

        Args:
            views: One view of each queue, taken now.
            now_s: Moment of the views.
            has_settled: True if this worker has ended a request.
        """
        arrivals = [[view.counters.get(n, 0) for n in COUNTERS_OF_ARRIVALS] for view in views]
        if self._first_arrivals is None:
            self._first_arrivals = arrivals
        is_empty = all(view.is_done for view in views)
        self._had_work |= has_settled or not is_empty or arrivals != self._first_arrivals
        if not is_empty or any(self._was_away(view) for view in views):
            return None
        if self._had_work:
            return "its queues are empty, and no producer is submitting"
        if now_s - self._begin_s >= self._first_request_timeout_s:
            return (
                f"no request came within {self._first_request_timeout_s:g} s"
                " (GRISTMILL_FIRST_REQUEST_TIMEOUT_S)"
            )
        return None

    def _was_away(self, view: Stats) -> bool:
        return view.grace_ms > 0 or view.silent_ms > self._max_silence_ms


class UntilEmpty:
    """Starts the drain of a worker when all its queues are empty.

    Args:
        reads: Functions that read a view of each queue; they wait while Redis is away.
        rule: The rule.
        load: Counts of the requests that the engine runs.
        drain: State of the drain.
        num_settled: Returns how many requests the worker has ended.
    """

    def __init__(
        self,
        reads: Sequence[ReadStats],
        rule: EmptyRule,
        load: EngineLoad,
        drain: Drain,
        num_settled: Callable[[], int],
    ) -> None:
        self._reads = reads
        self._rule = rule
        self._load = load
        self._drain = drain
        self._num_settled = num_settled

    async def watch(self) -> None:
        """Look once in `CHECK_S` while the engine runs nothing, until the drain starts."""
        while not self._drain.is_draining:
            await self._load.idle.wait()
            views = [await read() for read in self._reads]
            has_settled = self._num_settled() > 0
            reason = self._rule.reason(views, time.monotonic(), has_settled=has_settled)
            if reason and self._load.idle.is_set():
                self._drain.start(reason)
            await asyncio.sleep(CHECK_S)
