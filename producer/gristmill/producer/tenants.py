"""Tenants: the users of all queues over HTTP, with their API keys, limits and webhooks.

The gateway reads a tenant for each call, the steward for each webhook. `gristmill tenant` writes them.
"""

import asyncio
import base64
import binascii
import re
import secrets
from collections.abc import AsyncIterator, Sequence
from hashlib import sha256
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from redis.exceptions import ResponseError

from gristmill.shared.errors import InvalidRequest, NotFound
from gristmill.shared.key_scan import SCANNED_A_CALL, queue_names
from gristmill.shared.keys import DirectoryKeys, Keys
from gristmill.shared.redis_types import AnyRedis
from gristmill.shared.request import Priority

NAME = r"[a-z0-9-]{1,64}"
KEY_PREFIX = "gm-"
SECRET_PREFIX = "whsec_"  # noqa: S105  # Standard Webhooks' mark of a secret

OverBudget = Literal["wait", "fail"]
"""What the batches of a tenant do when a token budget is used up."""

_URL = re.compile(r"https?://[^\s/?#@\\]+(?:[/?#]\S*)?")


class Tenant(BaseModel):
    """One tenant.

    Attributes:
        name: 1 to 64 of `a-z`, `0-9` and `-`; no dot, since ids are `<tenant>.<rest>`.
        max_depth: Most requests in each queue, waiting or in flight.
        max_bytes: Most bytes of those requests.
        max_batches: Most batches of each queue that have not ended.
        max_storage_bytes: Most bytes of its files and of the results of its batches, in each queue.
        max_live: Most live requests in all queues, waiting or in flight.
        max_priority: Highest lane that its requests and batches may ask for.
        requests_per_minute: Most calls of the gateway per minute.
        tokens_per_day: Prompt and output tokens of a UTC day, in all queues; 0 for any number.
        tokens_per_month: The same of a calendar month.
        over_budget: What its batches do when a budget is used up: wait until it renews, or fail.
        webhook_url: Receives an event when a batch ends; None for no webhook.
        webhook_secret: Signs the events: `whsec_` and 24 to 64 bytes in base64
            (https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md).
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: Annotated[str, Field(pattern=rf"^{NAME}$")]
    max_depth: Annotated[int, Field(ge=1)] = 100_000
    max_bytes: Annotated[int, Field(ge=1024)] = 2**30
    max_batches: Annotated[int, Field(ge=1)] = 100
    max_storage_bytes: Annotated[int, Field(ge=1024)] = 100 * 2**30
    max_live: Annotated[int, Field(ge=1, le=10_000)] = 256
    max_priority: Priority = "normal"
    requests_per_minute: Annotated[int, Field(ge=1, le=1_000_000)] = 6_000
    tokens_per_day: Annotated[int, Field(ge=0)] = 0
    tokens_per_month: Annotated[int, Field(ge=0)] = 0
    over_budget: OverBudget = "wait"
    webhook_url: str | None = None
    webhook_secret: Annotated[str | None, Field(repr=False)] = None

    @field_validator("webhook_url")
    @classmethod
    def _check_url(cls, url: str | None) -> str | None:
        if url is not None and not _URL.fullmatch(url):
            raise ValueError("a webhook is http://host/path or https://host/path")
        return url

    @field_validator("webhook_secret")
    @classmethod
    def _check_secret(cls, secret: str | None) -> str | None:
        if secret is not None and not _is_secret(secret):
            raise ValueError(f"a secret is {SECRET_PREFIX} and 24 to 64 bytes in base64")
        return secret


def tenant_from(**fields: Any) -> Tenant:
    """Return a tenant. A field with the value None gets its default.

    Raises:
        InvalidRequest: The message names each wrong field and its rule, but no secret.
    """
    try:
        return Tenant(**{name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:
        problems = (f"{item['loc'][0]}: {item['msg']}" for item in error.errors())
        raise InvalidRequest(f"this tenant is not allowed: {'; '.join(problems)}") from None


def new_webhook_secret() -> str:
    """Return a fresh secret for `Tenant.webhook_secret`."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def _is_secret(text: str) -> bool:
    try:
        decoded = base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error:
        return False
    return text.startswith(SECRET_PREFIX) and 24 <= len(decoded) <= 64


class Tenants:
    """The tenants of one Redis, in its directory.

    An API key is 256 random bits, of which Redis stores the SHA-256. Such a key cannot be guessed. The slow hash
    that a password needs would protect nothing, and every call would pay for it.

    Args:
        redis: The Redis of the queues.

    Attributes:
        redis: The same.
    """

    def __init__(self, redis: AnyRedis) -> None:
        self.redis: Any = redis
        self._keys = DirectoryKeys()

    async def create(self, tenant: Tenant) -> str:
        """Add a tenant; returns its API key, which is not stored.

        Raises:
            InvalidRequest: A tenant has this name.
        """
        record = tenant.model_dump_json()
        if not await self.redis.set(self._keys.tenant(tenant.name), record, nx=True):
            raise InvalidRequest(f"tenant {tenant.name} exists already; delete it, or change it")
        await self.redis.sadd(self._keys.tenants, tenant.name)
        return await self.add_key(tenant.name)

    async def change(self, tenant: Tenant) -> None:
        """Replace a tenant's limits and webhook; running gateways notice it within seconds.

        Raises:
            NotFound: There is no such tenant.
        """
        record = tenant.model_dump_json()
        if not await self.redis.set(self._keys.tenant(tenant.name), record, xx=True):
            raise self._unknown(tenant.name)

    async def add_key(self, name: str) -> str:
        """Add an API key to a tenant and return it; the existing keys stay valid.

        Raises:
            NotFound: There is no such tenant.
        """
        await self.require(name)
        key = KEY_PREFIX + secrets.token_urlsafe(32)
        await self.redis.hset(self._keys.api_keys, _digest(key), name)
        return key

    async def revoke_keys(self, name: str) -> int:
        """Revoke all API keys of a tenant; returns their number."""
        found = await self._key_digests(name)
        return await self.redis.hdel(self._keys.api_keys, *found) if found else 0

    async def get(self, name: str) -> Tenant | None:
        """Return a tenant, or None."""
        record = await self.redis.get(self._keys.tenant(name))
        return Tenant.model_validate_json(record) if record else None

    async def require(self, name: str) -> Tenant:
        """Return a tenant.

        Raises:
            NotFound: There is no such tenant.
        """
        tenant = await self.get(name)
        if tenant is None:
            raise self._unknown(name)
        return tenant

    async def by_key(self, key: str) -> Tenant | None:
        """Return the tenant of an API key, or None."""
        name = await self.redis.hget(self._keys.api_keys, _digest(key))
        return await self.get(name.decode()) if name else None

    async def names(self) -> Sequence[str]:
        """Return the names of all tenants, sorted."""
        return sorted(name.decode() for name in await self.redis.smembers(self._keys.tenants))

    async def list(self) -> list[Tenant]:
        """Return all tenants by name."""
        found = await asyncio.gather(*(self.get(name) for name in await self.names()))
        return [tenant for tenant in found if tenant]

    async def exist(self) -> bool:
        """Return True if there is any tenant."""
        return bool(await self.redis.scard(self._keys.tenants))

    async def delete(self, name: str) -> None:
        """Delete a tenant, its keys and its weights. Its files, batches and requests stay until they expire.

        Raises:
            NotFound: There is no such tenant.
        """
        await self.require(name)
        for queue in await queue_names(self.redis):
            await self._drop_weight(queue, name)
        await self._remove(name)

    async def traces(self, name: str) -> Sequence[str]:
        """Return the keys of the directory that exist because of a tenant."""
        keys = self._keys
        own = (keys.tenant(name), keys.rate(name), keys.live(name))
        found = [key for key in own if await self.redis.exists(key)]
        found += [key.decode() async for key in self._notes(name)]
        found += [keys.tenants] if await self.redis.sismember(keys.tenants, name) else []
        return found + ([keys.api_keys] if await self._key_digests(name) else [])

    async def forget(self, name: str) -> None:
        """Delete all that the directory has of a tenant, even if there is no such tenant."""
        async for key in self._notes(name):
            await self.redis.unlink(key)
        await self._remove(name)

    async def _remove(self, name: str) -> None:
        """Remove a tenant; its record goes last, so that a call cut short can be repeated."""
        await self.revoke_keys(name)
        await self.redis.srem(self._keys.tenants, name)
        await self.redis.unlink(self._keys.rate(name), self._keys.live(name))
        await self.redis.unlink(self._keys.tenant(name))

    def _notes(self, name: str) -> AsyncIterator[bytes]:
        """Return the notes of the queues of its requests."""
        pattern = self._keys.request_queue(f"{name}.*")
        keys: AsyncIterator[bytes] = self.redis.scan_iter(match=pattern, count=SCANNED_A_CALL)
        return keys

    async def _drop_weight(self, queue: str, name: str) -> None:
        try:
            await self.redis.hdel(Keys(queue).tenant_weights, name)
        except ResponseError as error:
            if not str(error).startswith("WRONGTYPE"):  # `gristmill queue audit` names the key
                raise

    def _unknown(self, name: str) -> NotFound:
        return NotFound(f"there is no tenant {name!r}; list all: gristmill tenant list")

    async def _key_digests(self, name: str) -> Sequence[bytes]:
        return [
            digest
            async for digest, owner in self.redis.hscan_iter(self._keys.api_keys, count=500)
            if owner.decode() == name
        ]


def _digest(key: str) -> str:
    return sha256(key.encode(errors="replace")).hexdigest()
