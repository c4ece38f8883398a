"""When the memory of Redis calls for fewer claims: a pure rule over one view of the queue."""

from gristmill.shared.operations import Stats

HIGH_WATER = 0.9
"""Share of `maxmemory` above which claims pause."""


def should_pause_claims(stats: Stats) -> bool:
    """Tell whether results have nearly filled Redis, so that more of them might find no room.

    Claims go on while records of waiting requests hold more than half of what is used: then ending
    requests is what frees memory, and a pause would last for ever.

    Args:
        stats: One view of the queue.
    """
    if stats.used_memory < HIGH_WATER * stats.max_memory or stats.max_memory == 0:
        return False
    return stats.counters.get("bytes", 0) * 2 <= stats.used_memory
