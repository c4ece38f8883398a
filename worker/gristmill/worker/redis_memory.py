"""Pause claims while Redis is nearly full.

`queue_source.py` passes a view of the queue after each heartbeat, and asks before each claim.
"""

import structlog

from gristmill.shared.queue_stats import Stats
from gristmill.worker import metrics

log = structlog.get_logger()

HIGH_WATER = 0.9
"""Share of `maxmemory` above which claims pause."""

REQUEST_OVERHEAD_BYTES = 250
"""Bytes that Redis uses for a waiting request besides its record: keys, lanes, attempts (measured:
140 to 350)."""

REQUESTS_SHARE = 0.25
"""Share of the used memory from which this queue's requests, not its results, are the cause."""


def should_pause_claims(stats: Stats) -> bool:
    """Return whether results have nearly filled Redis, so that more results might not fit.

    Claims continue while this queue's requests hold `REQUESTS_SHARE` of the used memory or more.
    Then only ending requests frees memory, and a pause would never end.

    Args:
        stats: One view of the queue.
    """
    if stats.max_memory == 0 or stats.used_memory < HIGH_WATER * stats.max_memory:
        return False
    counters = stats.counters
    depth = counters.get("queued", 0) + counters.get("in_flight", 0)
    requests_memory = counters.get("bytes", 0) + depth * REQUEST_OVERHEAD_BYTES
    return requests_memory < REQUESTS_SHARE * stats.used_memory


class ClaimPause:
    """Pauses the claims from one queue while Redis is nearly full.

    Args:
        queue: Name of the queue.
    """

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._is_paused = False
        self._allowance = 0

    def take(self, stats: Stats) -> bool:
        """Update the pause from a view of the queue; return whether the batcher must look again."""
        was_paused, self._is_paused = self._is_paused, should_pause_claims(stats)
        if self._is_paused != was_paused:
            log.warning(
                "claims.paused" if self._is_paused else "claims.resumed",
                queue=self._queue,
                used_memory=stats.used_memory,
                max_memory=stats.max_memory,
                remedy="read results and let them expire sooner, or raise maxmemory",
            )
            metrics.claims_paused.labels(self._queue).set(self._is_paused)
        if self._is_paused:  # allow one request per heartbeat, so that every pause can end
            self._allowance = 1
        return self._is_paused or was_paused

    def granted(self, size: int) -> int:
        """Return how many of `size` requests may be claimed; a pause allows one per heartbeat."""
        if self._is_paused:
            size, self._allowance = min(size, self._allowance), 0
        return size
