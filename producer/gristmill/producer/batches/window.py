"""How much of a batch is in Redis, and how often its rows are written: pure functions."""

QUEUED_AHEAD_S = 15.0
MIN_QUEUED_AHEAD = 1024
MIN_COMMIT_S, MAX_COMMIT_S = 1.0, 30.0


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

    The window holds what the workers hold, and ahead of them what they finish in `QUEUED_AHEAD_S`: so
    they never run dry, and a slow model does not fill Redis.

    Args:
        num_outstanding: Requests of the batch that are in the queue or not yet written.
        outstanding_bytes: Bytes of their lines.
        num_in_flight: What all workers of the queue hold.
        finished_per_s: How fast this batch goes.
        max_requests: Largest window.
        max_bytes: Bytes after which no more go in.
    """
    if outstanding_bytes >= max_bytes:
        return 0
    ahead = max(MIN_QUEUED_AHEAD, int(finished_per_s * QUEUED_AHEAD_S))
    return max(0, min(max_requests, num_in_flight + ahead) - num_outstanding)


def commit_interval_s(age_s: float) -> float:
    """Return how long rows may wait to be written.

    Args:
        age_s: How long the batch runs; a long one is written in fewer, larger parts.
    """
    return min(max(MIN_COMMIT_S, age_s / 20), MAX_COMMIT_S)
