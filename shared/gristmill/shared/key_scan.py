"""Walk over keys with SCAN, in chunks. It never reads all keys into memory."""

from collections.abc import AsyncIterator

from gristmill.shared.keys import ALL_KEYS, queue_of
from gristmill.shared.queue_access import QueueAccess
from gristmill.shared.redis_types import AnyRedis

KEYS_A_CHUNK = 500
"""Most keys in one chunk, so that a call that reads them all stays short."""

SCANNED_A_CALL = 1_000
"""Keys that one call of SCAN looks at; this keeps each call near 1 ms."""


async def scan_keys(queue: QueueAccess, pattern: str | None = None) -> AsyncIterator[list[bytes]]:
    """Yield the keys of a queue in chunks; a key may come twice, as SCAN allows.

    Args:
        queue: The queue.
        pattern: Pattern for SCAN; None for all keys of the queue.
    """
    chunk: list[bytes] = []
    matched = queue.redis.scan_iter(match=pattern or queue.keys.pattern, count=SCANNED_A_CALL)
    async for key in matched:
        chunk.append(key)
        if len(chunk) == KEYS_A_CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


async def scan_names(queue: QueueAccess, kind: str) -> AsyncIterator[list[str]]:
    """Yield what follows the first word in the keys of one kind, such as the ids of `request:<id>`."""
    async for keys in scan_keys(queue, queue.keys.of_kind(kind, "*")):
        yield [queue.keys.parse(key)[1] for key in keys]


async def queue_names(redis: AnyRedis) -> set[str]:
    """Return the names of all queues that have a key. Takes about 1 s for a million keys."""
    keys = redis.scan_iter(match=ALL_KEYS, count=SCANNED_A_CALL)
    return {name async for key in keys if (name := queue_of(key))}
