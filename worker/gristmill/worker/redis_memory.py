"""When the memory of Redis calls for fewer claims: a pure rule over one view of the queue, and the pause itself."""

import structlog

from gristmill.shared.operations import Stats
from gristmill.worker import metrics

log = structlog.get_logger()

HIGH_WATER = 0.9
"""Share of `maxmemory` above which claims pause."""

REQUEST_OVERHEAD_BYTES = 250
"""What Redis spends on a waiting request beside its record: keys, lanes, attempts (140 to 350 seen)."""

REQUESTS_SHARE = 0.25
"""Share of what is used above which this queue's own requests count as what fills Redis."""


def should_pause_claims(stats: Stats) -> bool:
    """Tell whether results have nearly filled Redis, so that more of them might find no room.

    Claims go on while this queue's requests hold a fair share of what is used: then ending them is what
    frees memory, and a pause would last for ever.

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
        """Take in one view of the queue; return whether the batcher has to look again."""
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
        if self._is_paused:  # one request a beat, so that no pause lasts for ever
            self._allowance = 1
        return self._is_paused or was_paused

    def granted(self, size: int) -> int:
        """Return how many of so many requests may be claimed; in a pause the allowance, once."""
        if self._is_paused:
            size, self._allowance = min(size, self._allowance), 0
        return size
