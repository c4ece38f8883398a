"""Purge a tenant: its data in every queue, and the tenant itself. `gristmill tenant purge` calls it.

A purge may run twice, and it may be killed at any point and run again.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.batches.file_purge import FilePurge
from gristmill.producer.purge import SETTLE_S, Purge, PurgeReport, Tell
from gristmill.producer.tenants import Tenants
from gristmill.shared.key_scan import scan_keys
from gristmill.shared.names import check_tenant
from gristmill.shared.queue_access import QueueAccess
from gristmill.shared.tenant_data import DataKind, TenantData

RECORDS = "records of the tenant"
"""Kind of what names the tenant alone: its keys in the directory, and its lists in a queue."""


async def purge_tenant(
    tenants: Tenants, stores: Sequence[BatchStore], tenant: str, *, tell: Tell = lambda _: None,
    settle_s: float = SETTLE_S, may_lack_objects: bool = False,
) -> PurgeReport:  # fmt: skip
    """Remove all data of a tenant, and the tenant itself.

    First nothing new may come: API keys are revoked, and batches are cancelled and taken from their stewards. A
    producer with access to Redis can still submit for the tenant; then the report has something left.

    Args:
        tenants: All tenants.
        stores: The batches and files of each queue.
        tenant: Name of the tenant; it need not be one of the gateway's.
        tell: Called once the storage is checked, and after each chunk.
        settle_s: Seconds to wait until gateways and stewards know; there is no wait if nobody knows such a tenant
            and no queue has a batch of it.
        may_lack_objects: True if objects of the tenant's files were lost with their storage.

    Raises:
        InvalidRequest: No tenant can have this name.
        SettingsError: The storage is not the one that has the tenant's files; nothing was deleted.
    """
    check_tenant(tenant)
    files = [FilePurge(store, tenant) for store in stores]
    for of_queue in files:
        await of_queue.check_storage(may_lack_objects=may_lack_objects)
    is_known = await tenants.get(tenant) is not None
    report = PurgeReport(removed=Counter({"API keys": await tenants.revoke_keys(tenant)}))
    tell(report.removed)
    batches = [await of_queue.stop_batches() for of_queue in files]
    if is_known or any(batches):
        await asyncio.sleep(settle_s)
    for store, of_queue, ids in zip(stores, files, batches, strict=True):
        data = TenantData(store.queue, tenant, ids)
        await Purge(store, of_queue, _kinds(store, data, of_queue, tenant), tell, report).run()
        report.unattributed += data.unattributed
    return await _forget(tenants, tenant, report)


async def _forget(tenants: Tenants, tenant: str, report: PurgeReport) -> PurgeReport:
    """Remove the tenant from the directory; note that, and what is left of it."""
    report.removed[RECORDS] += len(await tenants.traces(tenant))
    await tenants.forget(tenant)
    report.left[RECORDS] += len(await tenants.traces(tenant))
    report.removed, report.left = +report.removed, +report.left  # without zeros
    return report


async def count_of_tenant(
    tenants: Tenants, stores: Sequence[BatchStore], tenant: str
) -> Counter[str]:
    """Return how much a purge of a tenant would remove, by kind; empty if nobody knows the tenant."""
    found = Counter({RECORDS: len(await tenants.traces(tenant))})
    for store in stores:
        data, files = TenantData(store.queue, tenant), FilePurge(store, tenant)
        for kind in _kinds(store, data, files, tenant):
            async for chunk in kind.find():
                found[kind.name] += len(chunk)
    return +found


def _kinds(store: BatchStore, data: TenantData, files: FilePurge, tenant: str) -> list[DataKind]:
    return [*data.kinds(), *files.kinds(), _lists(store.queue, tenant)]


def _lists(queue: QueueAccess, tenant: str) -> DataKind:
    """Return the keys of a queue that list what the tenant has, and its Idempotency-Keys."""
    redis: Any = queue.redis
    keys = queue.keys
    lists = (
        keys.files(tenant), keys.batches(tenant), keys.batches_open(tenant), keys.storage(tenant)
    )  # fmt: skip

    async def find() -> AsyncIterator[Sequence[Any]]:
        if found := [key for key in lists if await redis.exists(key)]:
            yield found
        async for some in scan_keys(queue, keys.idempotency(tenant, "*")):
            yield some

    async def remove(found: Sequence[Any]) -> int:
        num_removed: int = await redis.unlink(*found)
        return num_removed

    return DataKind(RECORDS, find, remove)
