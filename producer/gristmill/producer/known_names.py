"""Say that a queue or a tenant is not known, with the nearest name that is. The commands call it."""

from collections.abc import Collection, Sequence
from difflib import get_close_matches

from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.tenants import Tenants
from gristmill.shared.key_scan import queue_names, scan_names
from gristmill.shared.queue import Queue
from gristmill.shared.queue_access import QueueAccess


async def unknown_tenant(tenants: Tenants, stores: Sequence[BatchStore], name: str) -> str:
    """Return the message for a tenant of which neither the directory nor a queue has anything."""
    known = {tenant.name for tenant in await tenants.list()}
    known = known.union(*[await _tenants_of(store.queue) for store in stores])
    return (
        f"there is no tenant {name!r}{_nearest(name, known)}; nothing was deleted; check the name"
    )


async def unknown_queue(queue: QueueAccess) -> str:
    """Return the message for a queue that has no key."""
    name, redis = queue.keys.queue, queue.redis
    known = await queue_names(redis) - {name}
    return f"this Redis has no queue {name!r}{_nearest(name, known)}; check --queue and --redis-url"


async def _tenants_of(queue: Queue) -> set[str]:
    names = await queue.tenants.names()
    return names.union(*[owners async for owners in scan_names(queue, "files")])


def _nearest(name: str, known: Collection[str]) -> str:
    nearest = get_close_matches(name, known, n=1)
    return f"; did you mean {nearest[0]!r}?" if nearest else ""
