"""The list of queues in the directory: those that a gateway or steward has served.

Token budgets count in all of them. A scan over all keys would find the queues too, but takes 1 s for a million keys.
"""

from typing import Any

from gristmill.shared.keys import DirectoryKeys
from gristmill.shared.redis_types import AnyRedis


async def note_queue(redis: AnyRedis, name: str) -> None:
    """Add a queue to the list; a second call changes nothing."""
    connected: Any = redis
    await connected.sadd(DirectoryKeys.queues, name)


async def noted_queues(redis: AnyRedis) -> set[str]:
    """Return the names of the noted queues."""
    connected: Any = redis
    return {name.decode() for name in await connected.smembers(DirectoryKeys.queues)}


async def forget_queue(redis: AnyRedis, name: str) -> None:
    """Remove a queue that was purged from the list."""
    connected: Any = redis
    await connected.srem(DirectoryKeys.queues, name)
