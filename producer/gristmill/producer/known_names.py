"""Say that a queue or a tenant is not known, with the nearest names that are. The commands call it."""

from collections.abc import Collection, Sequence
from difflib import get_close_matches

from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.tenants import Tenants
from gristmill.shared.key_scan import queue_names, scan_names
from gristmill.shared.queue import Queue
from gristmill.shared.queue_access import QueueAccess

MAX_NAMES = 5
"""Most queues that a message names; more would fill the screen."""


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
    hint = _nearest(name, known) or (f"; it has {_some(known)}" if known else "")
    return f"this Redis has no queue {name!r}{hint}; check --queue and --redis-url"


async def is_unused(queue: QueueAccess) -> bool:
    """Return True if nobody has used the queue, so that its name may be misspelt."""
    keys, redis = queue.keys, queue.redis
    used = keys.workers, keys.stats, keys.inbox, keys.files_expiring, keys.tenant_weights
    return not await redis.exists(*used)


async def other_queues(queue: QueueAccess) -> str:
    """Return advice for an id that the queue does not have: which other queues to try."""
    known = await queue_names(queue.redis) - {queue.keys.queue}
    return f"try --queue with {_some(known)}" if known else "this Redis has no other queue"


def _some(names: Collection[str]) -> str:
    """Return the first names as words."""
    more = f" and {len(names) - MAX_NAMES:,} more" if len(names) > MAX_NAMES else ""
    return ", ".join(sorted(names)[:MAX_NAMES]) + more


async def _tenants_of(queue: Queue) -> set[str]:
    names = await queue.tenants.names()
    return names.union(*[owners async for owners in scan_names(queue, "files")])


def _nearest(name: str, known: Collection[str]) -> str:
    nearest = get_close_matches(name, known, n=1)
    return f"; did you mean {nearest[0]!r}?" if nearest else ""
