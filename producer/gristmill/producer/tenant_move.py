"""Move the tenants that versions before 0.2 kept with a queue into the directory.

Gateway and steward move those of their queue before they use the directory, the commands those of all queues. A move
may run twice, at the same time too, and it may be killed at any point and run again: what it deletes, it has copied
before.
"""

from collections.abc import Mapping, Set
from typing import Any

from pydantic import ValidationError

from gristmill.producer.tenants import Tenant
from gristmill.shared.chunking import chunks
from gristmill.shared.errors import WrongFormat
from gristmill.shared.key_scan import queue_names
from gristmill.shared.keys import DirectoryKeys, Keys
from gristmill.shared.redis_types import AnyRedis

FORMAT = "1"
"""Value of `DirectoryKeys.format`."""

KEYS_A_CALL = 500
"""API keys or names that one call writes."""


async def move_all_tenants(redis: AnyRedis) -> None:
    """Move the tenants of all queues, once for a Redis: it looks at all keys.

    Raises:
        WrongFormat: See `move_tenants`.
    """
    connected: Any = redis
    if await connected.exists(DirectoryKeys.format):
        return
    for queue in sorted(await queue_names(redis)):
        await move_tenants(redis, queue)
    await connected.set(DirectoryKeys.format, FORMAT)


async def move_tenants(redis: AnyRedis, queue: str) -> None:
    """Move the tenants of one queue with their API keys. Their requests, files and batches stay in the queue.

    Args:
        redis: The Redis of the queue.
        queue: Name of the queue.

    Raises:
        WrongFormat: The directory has another tenant of the same name, or a record is damaged; the queue still has all
            of its own.
    """
    await _TenantMove(redis, queue).run()


class _TenantMove:
    """The move of the tenants of one queue."""

    def __init__(self, redis: AnyRedis, queue: str) -> None:
        self._redis: Any = redis
        self._queue = queue
        keys = Keys(queue)
        self._of_kind = keys.of_kind
        self._names, self._api_keys = keys.of_kind("tenants", ""), keys.of_kind("api_keys", "")
        self._directory = DirectoryKeys()

    async def run(self) -> None:
        if not await self._redis.exists(self._names, self._api_keys):
            return
        api_keys: Mapping[bytes, bytes] = await self._redis.hgetall(self._api_keys)
        members: Set[bytes] = await self._redis.smembers(self._names)
        names = sorted(name.decode() for name in {*members, *api_keys.values()})
        records = await self._records(names)
        for name, record in records.items():
            self._check_record(name, record)
        for name, record in records.items():
            await self._redis.set(self._directory.tenant(name), record, nx=True)
        await self._check(records)
        for some in chunks(list(records), KEYS_A_CALL):
            await self._redis.sadd(self._directory.tenants, *some)
        owners = {
            name.encode()
            for name in names
            if name in records or await self._is_known(name, members)
        }
        moving = [(key, name) for key, name in api_keys.items() if name in owners]
        for pairs in chunks(moving, KEYS_A_CALL):
            await self._redis.hset(self._directory.api_keys, mapping=dict(pairs))
        for name in records:
            await self._redis.unlink(self._of_kind("tenant", name))
        await self._redis.unlink(self._names, self._api_keys)

    async def _records(self, names: list[str]) -> dict[str, bytes]:
        """Return the records of the tenants that the queue still has."""
        found = {name: await self._redis.get(self._of_kind("tenant", name)) for name in names}
        return {name: record for name, record in found.items() if record is not None}

    async def _is_known(self, name: str, members: Set[bytes]) -> bool:
        """Return True if a tenant of the queue is in the directory. One that was deleted is no member of the queue.

        Its left API keys must not open a tenant of this name of another queue.
        """
        is_member = name.encode() in members
        return is_member and bool(await self._redis.exists(self._directory.tenant(name)))

    def _check_record(self, name: str, record: bytes) -> None:
        try:
            found, reason = (
                Tenant.model_validate_json(record).name,
                "the record names another tenant",
            )
        except ValidationError as error:
            found, reason = None, error.errors()[0]["msg"]
        if found != name:
            raise WrongFormat(
                f"queue {self._queue} has a damaged record of the tenant {name} of version 0.1 ({reason}), so no tenant of"
                f" this queue was moved. redis-cli SET '{self._of_kind('tenant', name)}' '{{\"name\":\"{name}\"}}' keeps its API"
                f" keys and gives it the default limits and no webhook; then: gristmill tenant change {name}"
            )

    async def _check(self, records: Mapping[str, bytes]) -> None:
        """Check that the directory has no other tenant of these names.

        Somebody may change a tenant that another process has just moved; then the queue has its record no more.
        """
        theirs = {name: await self._redis.get(self._directory.tenant(name)) for name in records}
        suspects = [name for name, known in theirs.items() if known not in (None, records[name])]
        if others := sorted(await self._records(suspects)):
            name, key = others[0], self._of_kind("tenant", others[0])
            raise WrongFormat(
                f"queue {self._queue} still has tenants of version 0.1 whose names other tenants of the directory have:"
                f" {', '.join(others[:5])}{', ...' if others[5:] else ''}. If both {name} are one user: redis-cli DEL '{key}'"
                " keeps the directory's limits and webhook, and the API keys of both. If they are two users: with version"
                f" 0.1, delete {name} of queue {self._queue} and create it under another name"
            )
