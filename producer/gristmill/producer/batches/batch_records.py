"""The batches of one queue in Redis.

A batch is one hash. The steward that holds the lease of a batch writes `record` and `checkpoint`
(`lifecycle/leased_batch.py`). Everybody else writes fields of their own, such as `cancelling_at`, so
two writers never overwrite each other.
"""

import time
from itertools import chain
from typing import Any

from ulid import ULID

from gristmill.producer.batches.batch_state import WORK_OF, BatchState, Checkpoint
from gristmill.producer.batches.objects import BatchRecord
from gristmill.producer.batches.parts import Part
from gristmill.producer.batches.scripts import lua_script
from gristmill.shared.errors import LimitReached, NotFound
from gristmill.shared.pauses import batch_scope
from gristmill.shared.queue_access import QueueAccess
from gristmill.shared.redis_types import AnyRedis

FENCE_S = 600
"""Seconds for which `fence` keeps stewards away; a purge that dies leaves the batch to them after that."""

SCANNED_A_CALL = 1_000
"""Keys that one call of SCAN looks at; this keeps each call near 1 ms."""


class BatchRecords:
    """Reads batches, and writes what needs no lease.

    Args:
        queue: Queue of the batches; gives the Redis and the keys.
    """

    def __init__(self, queue: QueueAccess) -> None:
        self._redis: Any = queue.redis
        self._keys = queue.keys
        self._create = lua_script(queue.redis, "create")
        self._fence = lua_script(queue.redis, "fence")
        self._free = lua_script(queue.redis, "free")

    async def create(self, record: BatchRecord, max_open: int) -> None:
        """Write a new batch and wake a steward.

        Args:
            record: The batch.
            max_open: Most batches of its tenant that may not have ended; 0 for no limit.

        Raises:
            LimitReached: The tenant has `max_open` batches that have not ended.
        """
        args = [record.id, record.tenant, record.model_dump_json(), max_open, ""]
        if not await self._create(keys=[self._keys.prefix], args=args):
            raise LimitReached(
                f"tenant {record.tenant} has {max_open:,} batches that have not ended, which is its limit;"
                " wait for one, or cancel one"
            )

    async def create_child(self, record: BatchRecord, checkpoint: Checkpoint) -> None:
        """Write a child that runs from a checkpoint, and wake a steward; lists and limits leave it out.

        Called again, it changes nothing.
        """
        args = [record.id, record.tenant, record.model_dump_json(), 0, checkpoint.dump()]
        await self._create(keys=[self._keys.prefix], args=args)

    async def state(self, batch: str, tenant: str | None = None) -> BatchState:
        """Return the state of a batch.

        Args:
            batch: Id of the batch.
            tenant: The tenant that must own it; None for any, and for children too.

        Raises:
            NotFound: There is no such batch, or it belongs to another tenant.
        """
        info = await self._redis.hgetall(self._keys.batch_record(batch))
        state = BatchState.parse(info) if b"record" in info else None
        if state is None or (tenant is not None and not state.record.is_of(tenant)):
            raise NotFound(
                f"no batch {batch!r}: none was created under this id, its TTL has ended, or it was purged"
            )
        return state

    async def record_and_slices(self, batch: str) -> tuple[BatchRecord | None, int]:
        """Return the record of a batch, or None, and the number of slices that stewards began."""
        fields = await self._redis.hmget(self._keys.batch_record(batch), "record", "slices")
        record, num_slices = fields
        return BatchRecord.model_validate_json(record) if record else None, int(num_slices or 0)

    async def page(self, tenant: str, *, after: str | None, limit: int) -> list[BatchRecord]:
        """Return a tenant's batches after the id `after`, newest first."""
        key = self._keys.batches(tenant)
        records: list[BatchRecord] = []
        for batch in await ids_after(self._redis, key, after, limit, is_desc=True):
            try:
                records.append((await self.state(batch)).record)
            except NotFound:
                await self._redis.zrem(key, batch)  # its TTL has ended
        return records

    async def newest(self, limit: int) -> list[BatchRecord]:
        """Return the newest batches of all tenants, newest first; scans the keys of this Redis."""
        pattern = self._keys.batches("*")
        keys = {key async for key in self._redis.scan_iter(match=pattern, count=SCANNED_A_CALL)}
        tenants = [self._keys.parse(key)[1] for key in keys]
        pages = [await self.page(tenant, after=None, limit=limit) for tenant in tenants]
        found = sorted(chain.from_iterable(pages), key=lambda record: record.id, reverse=True)
        return found[:limit]

    async def open_batches(self, tenant: str) -> list[BatchRecord]:
        """Return a tenant's batches that have not ended."""
        ids = await self._redis.smembers(self._keys.batches_open(tenant))
        found = [await self.record_and_slices(batch.decode()) for batch in ids]
        return [record for record, _ in found if record]

    async def num_open(self, tenant: str) -> int:
        """Return the number of a tenant's batches that have not ended."""
        return int(await self._redis.scard(self._keys.batches_open(tenant)))

    async def mark_cancelled(self, batch: str) -> None:
        """Note that a batch is to end; the steward that holds it reads the note."""
        await self._redis.hsetnx(self._keys.batch_record(batch), "cancelling_at", int(time.time()))

    async def is_cancelled(self, batch: str) -> bool:
        """Return True if a client has cancelled the batch."""
        return bool(await self._redis.hexists(self._keys.batch_record(batch), "cancelling_at"))

    async def mark_announced(self, batch: str) -> None:
        """Note that the webhook of a batch was called, or that its tenant has none."""
        if await self._redis.exists(self._keys.batch_record(batch)):
            await self._redis.hsetnx(
                self._keys.batch_record(batch), "announced_at", int(time.time())
            )

    async def count_webhook_try(self, batch: str) -> int:
        """Count a try to call the webhook of a batch; return the number of tries so far."""
        num_tries: int = await self._redis.hincrby(
            self._keys.batch_record(batch), "webhook_tries", 1
        )
        return num_tries

    async def parts(self, batch: str) -> list[Part]:
        """Return the committed parts of a batch, in the order of their commits."""
        blobs = await self._redis.lrange(self._keys.batch_parts(batch), 0, -1)
        return [Part.parse(blob) for blob in blobs]

    async def forget_parts(self, tenant: str, batch: str) -> None:
        """Delete the list of a batch's parts; the output files have their rows."""
        await self._free(keys=[self._keys.prefix], args=[tenant, batch])
        await self._redis.unlink(self._keys.batch_parts(batch))

    async def expire(self, batch: str, ttl_s: int) -> None:
        """Give the record of a batch a TTL in seconds."""
        await self._redis.expire(self._keys.batch_record(batch), ttl_s)

    async def fence(self, batch: str) -> bool:
        """Cancel a batch, and take its lease from its steward for `FENCE_S`.

        The steward finds out within 3 s, and no commit or submit of it counts any more.

        Returns:
            True if a steward had the lease.
        """
        args = [batch, f"purge-{ULID()}", FENCE_S]
        return int(await self._fence(keys=[self._keys.prefix], args=args)) == 2

    async def is_leased(self, batch: str) -> bool:
        """Return True if a steward or a purge has the lease of a batch."""
        return bool(await self._redis.exists(self._keys.batch_lease(batch)))

    async def forget(self, tenant: str, batch: str) -> int:
        """Delete all that Redis holds of a batch; return 1, or 0 if there was no such batch."""
        keys = self._keys
        num_records: int = await self._redis.unlink(keys.batch_record(batch))
        await self._redis.unlink(
            keys.batch_parts(batch),
            keys.batch_lease(batch),
            keys.batch(batch),
            keys.finished(batch),
        )
        await self._redis.hdel(keys.pauses, batch_scope(batch))
        for work in set(WORK_OF.values()):
            await self._redis.zrem(keys.batches_due(work, tenant), batch)
            await self._redis.zrem(keys.steward_time(work), tenant)
        await self._redis.srem(keys.batches_open(tenant), batch)
        await self._redis.zrem(keys.batches(tenant), batch)
        return num_records


async def ids_after(
    redis: AnyRedis, key: str, after: str | None, limit: int, *, is_desc: bool
) -> list[str]:
    """Return the ids that follow `after` in a sorted set.

    All scores are 0, so Redis sorts the ids as bytes.

    Args:
        redis: Client of the queue.
        key: Key of the sorted set.
        after: Id before the first one to return; None begins at the start.
        limit: Most ids to return.
        is_desc: True for the order from the last id to the first.
    """
    start, end = ("+", "-") if is_desc else ("-", "+")
    if after:
        start = f"({after}"
    connected: Any = redis
    ids = await connected.zrange(key, start, end, bylex=True, desc=is_desc, offset=0, num=limit)
    return [found.decode() for found in ids]
