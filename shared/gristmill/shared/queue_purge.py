"""Delete every key of a queue. `gristmill queue purge` calls it; the objects of its batches go before."""

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

from gristmill.shared.key_scan import scan_keys, scan_names
from gristmill.shared.queue import Queue
from gristmill.shared.tenant_data import DataKind


class Holders(NamedTuple):
    """Processes that work on a queue now.

    Attributes:
        workers: Workers whose lease has not ended.
        batches: Batches that a steward has leased.
    """

    workers: Sequence[str]
    batches: Sequence[str]


async def holders(queue: Queue) -> Holders:
    """Return who holds a lease on the queue or on one of its batches."""
    now_ms = int(time.time() * 1000)  # not `stats`, which refuses a queue of another format
    ends: Any = await queue.redis.zrange(queue.keys.workers, 0, -1, withscores=True)
    batches = [batch async for some in scan_names(queue, "batch_lease") for batch in some]
    return Holders(
        sorted(worker.decode() for worker, end_ms in ends if end_ms > now_ms), sorted(set(batches))
    )


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
