"""Submit the requests of a run: all at once, or in an open loop that does not wait for answers."""

import asyncio
import random
import time
from collections.abc import Sequence
from itertools import accumulate

from gristmill.shared.queue import Queue
from gristmill.shared.request import Request

SUBMIT_SIZE = 128
"""Largest number of requests in one submit call."""


def arrivals(number: int, rate: float | None, seed: int) -> list[float]:
    """Return the due time of each request in seconds from the start.

    Args:
        number: Number of requests.
        rate: Mean requests per second of a Poisson process; None makes all due at once.
        seed: Seed of the arrivals.
    """
    if rate is None:
        return [0.0] * number
    chance = random.Random(seed)  # noqa: S311  # arrivals, no secrets
    return list(accumulate(chance.expovariate(rate) for _ in range(number)))


async def submit(queue: Queue, requests: Sequence[Request], due_s: Sequence[float]) -> None:
    """Submit each request when it is due, in one call with all others that are due by then."""
    started_at, start = time.monotonic(), 0
    while start < len(requests):
        await until(started_at + due_s[start])
        now_s, stop = time.monotonic() - started_at, start + 1
        while stop < min(len(requests), start + SUBMIT_SIZE) and due_s[stop] <= now_s:
            stop += 1
        await queue.submit(requests[start:stop])
        start = stop


async def until(at: float) -> None:
    """Wait until a monotonic time; a sleep of uvloop may end up to a millisecond early."""
    while (left_s := at - time.monotonic()) > 0:  # noqa: ASYNC110  # a time, not an event
        await asyncio.sleep(left_s)
