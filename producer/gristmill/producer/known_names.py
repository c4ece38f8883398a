"""Say that a queue or a tenant is not known, with the nearest name that is. The commands call it."""

from collections.abc import Collection
from difflib import get_close_matches
from typing import Any

from gristmill.shared.key_scan import SCANNED_A_CALL, scan_names
from gristmill.shared.keys import ALL_QUEUES, queue_of
from gristmill.shared.queue_access import QueueAccess


async def unknown_tenant(queue: QueueAccess, name: str) -> str:
    """Return the message for a tenant of which the queue has nothing."""
    nearest = _nearest(name, await _known_tenants(queue))
    return (
        f"queue {queue.keys.queue} knows no tenant {name!r}{nearest}; nothing was deleted;"
        " check the name and --queue"
    )


async def unknown_queue(queue: QueueAccess) -> str:
    """Return the message for a queue that has no key."""
    name, redis = queue.keys.queue, queue.redis
    keys = redis.scan_iter(match=ALL_QUEUES, count=SCANNED_A_CALL)
    known = {found async for key in keys if (found := queue_of(key))} - {name}
    return f"this Redis has no queue {name!r}{_nearest(name, known)}; check --queue and --redis-url"


async def _known_tenants(queue: QueueAccess) -> set[str]:
    redis: Any = queue.redis
    names = {name.decode() for name in await redis.smembers(queue.keys.tenants)}
    names |= {
        field.decode().rpartition("|")[0] for field in await redis.hkeys(queue.keys.tenant_load)
    }
    return names.union(*[owners async for owners in scan_names(queue, "files")])


def _nearest(name: str, known: Collection[str]) -> str:
    nearest = get_close_matches(name, known, n=1)
    return f"; did you mean {nearest[0]!r}?" if nearest else ""
