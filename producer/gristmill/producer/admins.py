"""The admin keys, which open the gateway's page. They do not open the API, and API keys of tenants do not open the page.

`gristmill admin` writes them, the gateway reads them.
"""

import hmac
import re
import secrets
import time
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import orjson

from gristmill.shared.answers import mapping
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.keys import DirectoryKeys
from gristmill.shared.redis_types import AnyRedis

KEY_PREFIX = "gma-"
"""Beginning of every admin key, so that people and scanners of secrets tell it from a tenant's."""

MAX_ADMINS = 100
"""Most admin keys: a sign-in compares with each of them."""

_NAME = re.compile(r"[a-z0-9-]{1,64}")


class Admin(NamedTuple):
    """One admin key.

    Attributes:
        name: Name of its owner, which log lines have.
        digest: SHA-256 of the key, in hexadecimal digits. The key itself is not stored: it is 256 random bits, which a
            slow hash would not protect better.
        created_at: Seconds since 1970.
    """

    name: str
    digest: str
    created_at: int


class Admins:
    """The admin keys of one Redis, in its directory.

    Args:
        redis: The Redis of the queues.
    """

    def __init__(self, redis: AnyRedis) -> None:
        self._redis: Any = redis

    async def create(self, name: str) -> str:
        """Add an admin key and return it.

        Raises:
            InvalidRequest: The name is not allowed or taken, or there are `MAX_ADMINS` keys.
        """
        if not _NAME.fullmatch(name):
            raise InvalidRequest(f"admin {name[:80]!r} is not allowed; use 1 to 64 of a-z, 0-9, -")
        if await self._redis.hlen(DirectoryKeys.admins) >= MAX_ADMINS:
            raise InvalidRequest(f"there are {MAX_ADMINS} admin keys, the limit; revoke one")
        key = KEY_PREFIX + secrets.token_urlsafe(32)
        record = orjson.dumps({"digest": digest_of(key), "created_at": int(time.time())})
        if not await self._redis.hsetnx(DirectoryKeys.admins, name, record):
            raise InvalidRequest(
                f"admin {name} exists already; revoke it first, or take another name"
            )
        return key

    async def list(self) -> Sequence[Admin]:
        """Return all admin keys by name."""
        found = await self._redis.hgetall(DirectoryKeys.admins)
        return sorted(_admin(name, record) for name, record in found.items())

    async def get(self, name: str) -> Admin | None:
        """Return the admin key of a name, or None."""
        record = await self._redis.hget(DirectoryKeys.admins, name)
        return _admin(name.encode(), record) if record else None

    async def by_key(self, key: str) -> Admin | None:
        """Return the admin of a key, or None. The time that it takes does not tell how much of a key is right."""
        digest = digest_of(key)
        matches = [each for each in await self.list() if hmac.compare_digest(each.digest, digest)]
        return matches[0] if matches else None

    async def revoke(self, name: str) -> bool:
        """Delete an admin key, which ends its sessions at their next call; return False if no such key exists."""
        return bool(await self._redis.hdel(DirectoryKeys.admins, name))


def digest_of(secret: str) -> str:
    """Return the SHA-256 of a key or of a session's token."""
    return sha256(secret.encode(errors="replace")).hexdigest()


def _admin(name: bytes, record: bytes) -> Admin:
    fields = mapping(orjson.loads(record))
    digest, created_at = str(fields.get("digest", "")), fields.get("created_at")
    return Admin(name.decode(), digest, created_at if isinstance(created_at, int) else 0)
