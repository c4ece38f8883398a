"""Authentication: the tenant of an API key, and calls without a key."""

import time
from hashlib import sha256

from gristmill.producer.gateway.failover_retry import retry_redis
from gristmill.producer.gateway.http_errors import ApiError
from gristmill.producer.tenants import Tenant, Tenants
from gristmill.shared.names import DEFAULT_TENANT

CACHE_TTL_S = 5.0
"""Longest time until the gateway notices a changed tenant or a revoked key."""

MAX_CACHED_KEYS = 10_000
"""Most keys in the cache; when it is full, all are dropped."""

ANONYMOUS = Tenant(
    name=DEFAULT_TENANT, max_depth=2**53, max_bytes=2**53, max_batches=2**31, max_storage_bytes=2**53, requests_per_minute=1_000_000,
    max_live=10_000, max_priority="high",
)  # fmt: skip
"""The tenant of every call while no tenant exists. The queue's own limits apply to it."""


class Authenticator:
    """Finds the tenants of API keys and caches them for some seconds.

    Args:
        tenants: All tenants.
        is_open: True to accept calls without a key while no tenant exists.
    """

    def __init__(self, tenants: Tenants, *, is_open: bool) -> None:
        self._tenants, self._is_open = tenants, is_open
        self._cached: dict[bytes, tuple[float, Tenant]] = {}

    async def tenant_of(self, key: str) -> Tenant:
        """Return the tenant of a key; "" stands for a call without a key.

        Raises:
            ApiError: 401: the key is missing or unknown.
        """
        digest = sha256(key.encode(errors="replace")).digest()
        expires_s, tenant = self._cached.get(digest, (0.0, None))
        if tenant is None or time.monotonic() > expires_s:
            tenant = await self._look_up(key)
            if len(self._cached) >= MAX_CACHED_KEYS:
                self._cached.clear()
            self._cached[digest] = (time.monotonic() + CACHE_TTL_S, tenant)
        return tenant

    async def _look_up(self, key: str) -> Tenant:
        found = await retry_redis(self._tenants.by_key, key) if key else None
        if found is not None:
            return found
        if self._is_open and not await retry_redis(self._tenants.exist):
            return ANONYMOUS
        what = "this API key is not known" if key else "an API key is needed"
        message = f"{what}: send Authorization: Bearer KEY; the operator makes one: gristmill tenant create NAME"
        raise ApiError(401, message, headers={"WWW-Authenticate": "Bearer"})
