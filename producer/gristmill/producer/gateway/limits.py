"""How much of the queue and of the gateway one tenant may use.

Calls a minute are counted in Redis, so they hold for all gateways of a queue together. Requests and bytes
are compared before a submit, not within it: calls that come at the same moment may overshoot by what they
bring, which a tenant cannot use to grow.
"""

import math
import time
from functools import partial
from typing import Any

from limits import RateLimitItemPerMinute
from limits.aio.storage import MovingWindowSupport, Storage
from limits.aio.storage.redis.bridge import RedisBridge
from limits.aio.strategies import MovingWindowRateLimiter

from gristmill.producer.gateway import metrics
from gristmill.producer.gateway.errors import ApiError
from gristmill.producer.gateway.patience import patiently
from gristmill.producer.tenants import Tenant
from gristmill.shared.connection import AnyRedis
from gristmill.shared.errors import LimitReached
from gristmill.shared.keys import Keys
from gristmill.shared.queue import Queue


class Windows(Storage, MovingWindowSupport):
    """Moving windows of the library `limits` in our own Redis, through our own client.

    Its Redis storages take other URLs than ours (no sentinel or cluster beside one server), keep connections
    of their own and write keys outside ours, which a user with least rights may not.

    Args:
        redis: A client of `connection.connect`.
        keys: Of the queue; an identifier is a tenant's name.
    """

    STORAGE_SCHEME = None

    def __init__(self, redis: AnyRedis, keys: Keys) -> None:
        super().__init__()
        self._redis, self._keys = redis, keys
        self._acquire = redis.register_script(RedisBridge.SCRIPT_ACQUIRE_MOVING_WINDOW)
        self._window = redis.register_script(RedisBridge.SCRIPT_MOVING_WINDOW)

    @property
    def base_exceptions(self) -> type[Exception]:
        """Nothing is wrapped."""
        return ValueError

    async def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Count a call, unless the window is full."""
        args = [time.time(), limit, expiry, amount]
        return bool(await self._acquire(keys=[self._key(key)], args=args))

    async def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        """Return when the window began and how many calls are in it."""
        now_s = time.time()
        window: Any = await self._window(keys=[self._key(key)], args=[now_s - expiry, limit])
        return (float(window[0]), window[1]) if window else (now_s, 0)

    def _key(self, identifier: str) -> str:
        return self._keys.rate(identifier.split("/")[1])

    async def clear(self, key: str) -> None:
        """Forget a window."""
        await self._redis.delete(self._key(key))

    async def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        """Refuse: of another strategy, as the four below."""
        raise NotImplementedError

    async def get(self, key: str) -> int:
        """Refuse."""
        raise NotImplementedError

    async def get_expiry(self, key: str) -> float:
        """Refuse."""
        raise NotImplementedError

    async def check(self) -> bool:
        """Refuse."""
        raise NotImplementedError

    async def reset(self) -> int | None:
        """Refuse."""
        raise NotImplementedError


class TenantLimits:
    """What bounds the tenants of one queue.

    Args:
        queue: Which queue.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._limiter = MovingWindowRateLimiter(Windows(queue.redis, queue.keys))

    async def count_call(self, tenant: Tenant) -> None:
        """Count a call.

        Raises:
            ApiError: 429, with the second at which the next one is let in.
        """
        item = RateLimitItemPerMinute(tenant.requests_per_minute)
        if await patiently(partial(self._limiter.hit, item, tenant.name)):
            return
        metrics.refused.labels("requests_per_minute").inc()
        window = await patiently(partial(self._limiter.get_window_stats, item, tenant.name))
        wait_s = max(1, math.ceil(window.reset_time - time.time()))
        message = (
            f"tenant {tenant.name} made {tenant.requests_per_minute:,} calls within a minute, its limit"
            f" (requests_per_minute); call again in {wait_s} s"
        )
        headers = {"Retry-After": str(wait_s)}
        raise ApiError(429, message, code="rate_limit_exceeded", headers=headers)

    async def check_load(self, tenant: Tenant, num_bytes: int) -> None:
        """See whether one more request fits.

        Args:
            tenant: Whose.
            num_bytes: Of the request.

        Raises:
            LimitReached: It has as many requests, or bytes of them, as it may.
        """
        depth, queued_bytes = await patiently(partial(self._queue.tenant_load, tenant.name))
        if depth < tenant.max_depth and queued_bytes + num_bytes <= tenant.max_bytes:
            return
        metrics.refused.labels("load").inc()
        raise LimitReached(
            f"tenant {tenant.name} has {depth:,} of {tenant.max_depth:,} requests (max_depth) and"
            f" {queued_bytes:,} of {tenant.max_bytes:,} bytes (max_bytes) in the queue; wait until some have finished"
        )
