"""Read fields of `worker:<worker>` of many workers; the fleet, the brakes and the forecast use it."""

from collections.abc import Iterable, Sequence
from typing import Any

from gristmill.shared.keys import Keys

MAX_DIGITS = 15
"""Most digits of a number that a worker says; milliseconds since 1970 have 13."""


async def read_facts(
    redis: Any, keys: Keys, workers: Iterable[str], fields: Sequence[str]
) -> dict[str, list[bytes | None]]:
    """Return the fields of each worker, None for a field that it lacks.

    All reads share one connection. Calls at the same time would open one connection for each worker. If each of 200
    workers did so, Redis would need more than the 10,000 connections that it accepts.
    """
    names = list(workers)
    if not names:
        return {}
    async with redis.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.hmget(keys.worker(name), fields)
        return dict(zip(names, await pipeline.execute(), strict=True))


def number_of(value: bytes | None) -> int:
    """Return a number that a worker says; 0 for none, and for a stray value, which must not stop its readers."""
    return int(value) if value and len(value) <= MAX_DIGITS and value.isdigit() else 0
