"""Delete every key of a queue. `gristmill queue purge` calls it; the objects of its batches go before."""

from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

from gristmill.shared.chunking import pairs
from gristmill.shared.key_scan import scan_keys, scan_names
from gristmill.shared.queue import Queue
from gristmill.shared.snapshot import read_together
from gristmill.shared.tenant_data import DataKind


class Holders(NamedTuple):
    """Processes that work on a queue now.

    Attributes:
        workers: Workers whose lease has not ended.
        batches: Batches that a steward has leased.
        producers: Producers that are still submitting.
    """

    workers: Sequence[str]
    batches: Sequence[str]
    producers: Sequence[str]


async def holders(queue: Queue) -> Holders:
    """Return who holds a lease on the queue or on one of its batches."""
    # `stats` would refuse a queue of another format.
    (now_s, _), workers, producers = await read_together(
        queue,
        ("TIME",),
        ("ZRANGE", queue.keys.workers, 0, -1, "WITHSCORES"),
        ("ZRANGE", queue.keys.producers, 0, -1, "WITHSCORES"),
    )
    batches = [batch async for some in scan_names(queue, "batch_lease") for batch in some]
    return Holders(_live(workers, now_s), sorted(set(batches)), _live(producers, now_s))


def _live(leases: Sequence[bytes], now_s: bytes) -> list[str]:
    """Return the names in the reply of a ZRANGE whose leases have not ended."""
    return sorted(name for name, end_ms in pairs(leases) if float(end_ms) > int(now_s) * 1000)


def all_keys(queue: Queue) -> DataKind:
    """Return the keys of a queue as a kind of data, to find and to remove."""
    redis: Any = queue.redis

    async def find() -> AsyncIterator[list[bytes]]:
        async for keys in scan_keys(queue):
            yield keys

    async def remove(keys: Sequence[bytes]) -> int:
        num_removed: int = await redis.unlink(*keys)
        return num_removed

    return DataKind("keys", find, remove)
