"""The Idempotency-Keys of a queue: which call created which file or batch, so that a repeat creates nothing."""

from hashlib import sha256
from typing import Any, NamedTuple

from gristmill.shared.errors import IdConflict
from gristmill.shared.queue_access import QueueAccess

KEY_TTL_S = 24 * 3600
"""Seconds for which a key is known, as with Stripe."""


class CreationKey(NamedTuple):
    """The key of one call, and what the call asks for.

    Attributes:
        key: The caller's Idempotency-Key.
        digest: SHA-256 of what is asked for; a repeat has the same.
    """

    key: str
    digest: str

    @classmethod
    def of(cls, key: str, asked: bytes) -> "CreationKey":
        """Return the key of a call that asks for this."""
        return cls(key, sha256(asked).hexdigest())


class Creations:
    """The keys that callers have used.

    Args:
        queue: Queue whose Redis has the keys.
    """

    def __init__(self, queue: QueueAccess) -> None:
        self._redis: Any = queue.redis
        self._keys = queue.keys

    async def find(self, tenant: str, key: str) -> tuple[str, str] | None:
        """Return digest and id of what a key created, or None."""
        found = await self._redis.get(self._keys.idempotency(tenant, key))
        return tuple(found.decode().split("|")) if found else None

    async def find_same(self, tenant: str, asked: CreationKey) -> str | None:
        """Return the id of what the same call created, or None.

        Raises:
            IdConflict: The key belongs to another call.
        """
        found = await self.find(tenant, asked.key)
        if found is None:
            return None
        digest, created_id = found
        if digest != asked.digest:
            raise IdConflict(
                f"Idempotency-Key {asked.key!r} belongs to another call, which created {created_id}; repeat that"
                f" call as it was, or use a new key; a key is known for {KEY_TTL_S // 3600} hours"
            )
        return created_id

    async def claim(self, tenant: str, asked: CreationKey, new_id: str) -> str:
        """Note the id that a call is about to create; returns it, or that of the first call with this key.

        Raises:
            IdConflict: The key belongs to another call.
        """
        name, value = self._keys.idempotency(tenant, asked.key), f"{asked.digest}|{new_id}"
        if await self._redis.set(name, value, nx=True, ex=KEY_TTL_S):
            return new_id
        return await self.find_same(tenant, asked) or new_id

    async def replace(self, tenant: str, asked: CreationKey, new_id: str) -> None:
        """Let a key name another id: what it named is gone."""
        name, value = self._keys.idempotency(tenant, asked.key), f"{asked.digest}|{new_id}"
        await self._redis.set(name, value, ex=KEY_TTL_S)

    async def release(self, tenant: str, key: str) -> None:
        """Forget a key whose call created nothing."""
        await self._redis.unlink(self._keys.idempotency(tenant, key))
