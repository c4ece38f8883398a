"""The bytes that the storage keeps for each tenant, and the quota of a tenant.

Redis counts them: uploads from their first byte on, the parts of running batches, and the files of batches that ended.
"""

from typing import Any

from gristmill.producer.batches.scripts import lua_script
from gristmill.producer.tenants import Tenants
from gristmill.shared.errors import StorageQuotaReached
from gristmill.shared.queue_access import QueueAccess


class StorageUse:
    """The use of the storage by the tenants of one queue.

    A tenant that the gateway does not know has no quota.

    Args:
        queue: Queue whose Redis has the counts.
    """

    def __init__(self, queue: QueueAccess) -> None:
        self._redis: Any = queue.redis
        self._keys = queue.keys
        self._tenants = Tenants(queue.redis)
        self._keep = lua_script(queue.redis, "keep")
        self._free = lua_script(queue.redis, "free")

    async def num_bytes(self, tenant: str) -> int:
        """Return the bytes that the storage keeps for a tenant."""
        return int(await self._redis.hget(self._keys.storage(tenant), "total") or 0)

    async def keep(self, tenant: str, file_id: str, num_bytes: int) -> None:
        """Note the bytes of a file.

        Raises:
            StorageQuotaReached: The tenant's quota has no room for them; the number so far stands.
        """
        quota = await self._quota(tenant)
        args = [tenant, file_id, num_bytes, quota]
        if used := await self._keep(keys=[self._keys.prefix], args=args):
            raise StorageQuotaReached(_reached(tenant, used, quota, num_bytes))

    async def free(self, tenant: str, object_id: str) -> None:
        """Note that the storage keeps nothing of a file or batch any more."""
        await self._free(keys=[self._keys.prefix], args=[tenant, object_id])

    async def check_room(self, tenant: str) -> None:
        """Check that a tenant has room for the results of a batch.

        Raises:
            StorageQuotaReached: The tenant's quota is used up.
        """
        quota = await self._quota(tenant)
        used = await self.num_bytes(tenant) if quota else 0
        if quota and used >= quota:
            raise StorageQuotaReached(_reached(tenant, used, quota, 0))

    async def _quota(self, tenant: str) -> int:
        known = await self._tenants.get(tenant)
        return known.max_storage_bytes if known else 0


def _reached(tenant: str, used: int, quota: int, num_bytes: int) -> str:
    more = f" and this file has {num_bytes:,}" if num_bytes else ""
    return (
        f"the files and results of tenant {tenant} have {used:,} of {quota:,} bytes (max_storage_bytes){more};"
        f" delete files, or ask the operator: gristmill tenant change {tenant} --max-storage-bytes NUMBER"
    )
