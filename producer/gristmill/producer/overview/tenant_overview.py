"""Read the tenants, a page at a time, with what they have in a queue and what they used today."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from gristmill.producer.batches.batch_state import Work
from gristmill.producer.tenants import Tenant, Tenants
from gristmill.producer.usage_report import usage_lines
from gristmill.shared.names import DEFAULT_TENANT
from gristmill.shared.queue import Queue
from gristmill.shared.snapshot import read_together
from gristmill.shared.usage_ledger import Ledger, Usage

MAX_NAMES = 10_000
"""Most names of tenants that one call returns."""


@dataclass(frozen=True, slots=True)
class TenantView:
    """One tenant in one queue.

    Attributes:
        name: Its name.
        limits: Its limits; None for a name without a record, such as the one of calls without a key.
        num_requests: Its requests that wait or run.
        num_bytes: Bytes of those requests.
        num_open_batches: Its batches that have not ended.
        today: Use of its requests that ended on this UTC day.
    """

    name: str
    limits: Tenant | None
    num_requests: int
    num_bytes: int
    num_open_batches: int
    today: Usage


@dataclass(frozen=True, slots=True)
class TenantPage:
    """A page of tenants.

    Attributes:
        tenants: The tenants by name.
        next_after: Name after which the next page begins; "" on the last page.
    """

    tenants: Sequence[TenantView]
    next_after: str


async def tenant_names(queue: Queue) -> list[str]:
    """Return the names of tenants, at most `MAX_NAMES`.

    These are the tenants of the directory and the one of calls without a key. Those with requests in the queue or with
    batches that need a steward count too. Others may have results or ended batches; only a scan of all keys would find them.
    """
    names = {DEFAULT_TENANT, *await Tenants(queue.redis).names(), *await queue.tenants.names()}
    works = (queue.keys.steward_time(work) for work in get_args(Work))
    replies = await read_together(queue, *(("ZRANGE", key, 0, MAX_NAMES) for key in works))
    names.update(name.decode(errors="replace") for found in replies for name in found)
    return sorted(names)[:MAX_NAMES]


async def read_tenants(queue: Queue, *, after: str = "", limit: int = 50) -> TenantPage:
    """Return a page of tenants by name.

    Takes some calls for the names and the ledger of the day, which has at most 20,000 fields. Each tenant of the page
    takes one more.

    Args:
        queue: The queue whose requests, batches and ledger count.
        after: Last name of the page before; "" for the first page.
        limit: Most tenants of the page, up to 100.
    """
    names = [name for name in await tenant_names(queue) if name > after]
    shown = names[:limit]
    ledger = Ledger(queue)
    today = await ledger.today()
    lines = usage_lines(await ledger.rows(today, today), ["tenant"], 0.0)
    used = {line.names[0]: line.usage for line in lines}
    keys = queue.keys
    replies = await read_together(
        queue,
        *(("HMGET", keys.tenant_load, f"{name}|requests", f"{name}|bytes") for name in shown),
        *(("SCARD", keys.batches_open(name)) for name in shown),
    )
    loads, open_batches = replies[: len(shown)], replies[len(shown) :]
    limits = [await Tenants(queue.redis).get(name) for name in shown]
    views = [
        TenantView(name, limit_of, int(load[0] or 0), int(load[1] or 0), num_open, used.get(name, Usage()))
        for name, limit_of, load, num_open in zip(shown, limits, loads, open_batches, strict=True)
    ]  # fmt: skip
    return TenantPage(views, shown[-1] if len(names) > limit else "")
