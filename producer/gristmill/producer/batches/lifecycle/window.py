"""Pure functions: how much of a batch is in Redis, and how often a steward writes its rows."""

QUEUED_AHEAD_S = 60.0
"""Seconds of work that wait in the queue ahead of the workers. Autoscaling sees no other work of a batch, so this is
more than the seconds of work for which it starts a worker (docs/autoscaling.md)."""

MIN_QUEUED_AHEAD = 1024
"""Least requests that wait ahead, for a batch whose rate is still unknown."""

MIN_COMMIT_S, MAX_COMMIT_S = 1.0, 30.0
"""Bounds of the time between two commits, in seconds."""


def room(
    *,
    num_outstanding: int,
    outstanding_bytes: int,
    num_in_flight: int,
    finished_per_s: float,
    max_requests: int,
    max_bytes: int,
) -> int:
    """Return how many more requests of a batch may go into the queue.

    The window has room for as many requests as the workers hold, and as many as finish in the next
    `QUEUED_AHEAD_S`. So the workers always have work, and a slow model does not fill Redis.

    Args:
        num_outstanding: Requests of the batch that are in the queue or have no committed row.
        outstanding_bytes: Bytes of their lines.
        num_in_flight: Requests that all workers of the queue hold.
        finished_per_s: Requests of this batch that finish per second.
        max_requests: Largest window.
        max_bytes: Bytes of lines after which the window is full.
    """
    if outstanding_bytes >= max_bytes:
        return 0
    ahead = max(MIN_QUEUED_AHEAD, int(finished_per_s * QUEUED_AHEAD_S))
    return max(0, min(max_requests, num_in_flight + ahead) - num_outstanding)


def commit_interval_s(age_s: float) -> float:
    """Return the longest time that rows may wait for a commit, in seconds.

    Args:
        age_s: Seconds since the batch began; an old one is written in fewer, larger parts.
    """
    return min(max(MIN_COMMIT_S, age_s / 20), MAX_COMMIT_S)
