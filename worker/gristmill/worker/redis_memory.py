"""When the memory of Redis calls for fewer claims: a pure rule over one view of the queue."""

from gristmill.shared.operations import Stats

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
