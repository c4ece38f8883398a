"""Delete every key of a queue. `gristmill queue purge` calls it; the objects of its batches go before."""

from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

from gristmill.shared.chunking import chunks
from gristmill.shared.key_scan import scan_keys, scan_names
from gristmill.shared.queue import Queue
from gristmill.shared.snapshot import read_together
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
    # `stats` would refuse a queue of another format.
    (now_s, _), flat = await read_together(
        queue, ("TIME",), ("ZRANGE", queue.keys.workers, 0, -1, "WITHSCORES")
    )
    batches = [batch async for some in scan_names(queue, "batch_lease") for batch in some]
    return Holders(
        sorted(w.decode() for w, end_ms in chunks(flat, 2) if float(end_ms) > int(now_s) * 1000),
        sorted(set(batches)),
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
