"""Read the values for the template of each page. `page_views.py` has the routes."""

from collections.abc import Mapping, Sequence
from typing import Any

from gristmill.producer.batches.shown_batches import shown, wait_of
from gristmill.producer.gateway.context import Gateway
from gristmill.producer.overview import (
    Trail,
    read_batch,
    read_batches,
    read_queue,
    read_tenants,
    read_trail,
    tenant_names,
)
from gristmill.producer.overview.dead_overview import read_dead
from gristmill.shared.errors import NotFound
from gristmill.shared.queue import Queue

WORKERS_A_PAGE = 50
BATCHES_A_PAGE = 25
LETTERS_A_PAGE = 25
TENANTS_A_PAGE = 50

Values = Mapping[str, Any]
"""The values of a template."""


def queue_named(gateway: Gateway, name: str) -> Queue:
    """Return a queue that the gateway serves; "" is the first one.

    Raises:
        NotFound: The gateway does not serve it.
    """
    for each in gateway.models.queues:
        if name in ("", each.name):
            return each.queue
    raise NotFound(f"this gateway serves no queue {name[:80]!r}")


async def queues(gateway: Gateway) -> Values:
    """Return the queues with their work and the sums of their workers."""
    return {"queues": [await read_queue(each.queue) for each in gateway.models.queues]}


async def workers(gateway: Gateway, queue: str, start: int) -> Values:
    """Return a page of the workers of a queue, with their engines."""
    view = await read_queue(queue_named(gateway, queue))
    shown = view.workers[start : start + WORKERS_A_PAGE]
    return {
        "queue": view, "workers": shown, "start": start, "total": len(view.workers),
        "page_size": WORKERS_A_PAGE, "now_ms": view.backlog.stats.now_ms,
    }  # fmt: skip


async def batches(gateway: Gateway, after: str) -> Values:
    """Return a page of the batches of all tenants; they belong to the gateway's first queue."""
    names = await tenant_names(gateway.queue)
    page = await read_batches(gateway.queue, names, after=after, limit=BATCHES_A_PAGE)
    return {"page": page, "after": after}


async def batch(gateway: Gateway, batch_id: str) -> Values:
    """Return one batch with its first errors.

    Raises:
        NotFound: There is no such batch.
    """
    view = await read_batch(gateway.queue, batch_id)
    if view is None:
        raise NotFound(f"there is no batch {batch_id[:200]!r}, or its TTL has ended")
    wait = await wait_of(gateway.batches.store, view.record.tenant)
    return {"view": view, "record": shown(view.record, wait)}


async def request(gateway: Gateway, request_id: str) -> Values:
    """Return the way of a request, in the first queue that knows it."""
    trail = await find_trail(gateway, request_id) if request_id else None
    return {"request_id": request_id, "trail": trail}


async def find_trail(gateway: Gateway, request_id: str) -> Trail:
    """Return the way of a request, in the first queue that knows it."""
    trails: Sequence[Trail] = []
    for each in gateway.models.queues:
        trails = [*trails, await read_trail(each.queue, request_id)]
        if trails[-1].is_known:
            return trails[-1]
    return trails[0]


async def dead_letters(gateway: Gateway, queue: str, start: int) -> Values:
    """Return a page of the dead letters of a queue."""
    chosen = queue_named(gateway, queue)
    page = await read_dead(chosen, start=start, limit=LETTERS_A_PAGE)
    return {"queue": chosen.keys.queue, "page": page, "page_size": LETTERS_A_PAGE}


async def tenants(gateway: Gateway, queue: str, after: str) -> Values:
    """Return a page of the tenants, with what they have in a queue."""
    chosen = queue_named(gateway, queue)
    page = await read_tenants(chosen, after=after, limit=TENANTS_A_PAGE)
    return {"queue": chosen.keys.queue, "page": page, "after": after}
