"""The limits of one tenant: calls per minute, requests in the queue and their bytes.

Redis counts the calls per minute, so all gateways of a queue share one count. The gateway checks
requests and bytes before a submit, not within it. So calls at the same moment may together exceed
the limit.
"""

import math
import time
from typing import Any

from limits import RateLimitItemPerMinute
from limits.aio.storage import MovingWindowSupport, Storage
from limits.aio.storage.redis.bridge import RedisBridge
from limits.aio.strategies import MovingWindowRateLimiter
from prometheus_client import Counter

from gristmill.producer.gateway.http_errors import ApiError
from gristmill.producer.gateway.redis_retry import retry_redis
from gristmill.producer.tenants import Tenant
from gristmill.shared.connection import AnyRedis
from gristmill.shared.errors import LimitReached
from gristmill.shared.keys import Keys
from gristmill.shared.queue import Queue

_refused_calls = Counter(
    "gristmill_gateway_refused_calls", "Calls over a tenant's limit", ["limit"]
)


class MovingWindows(Storage, MovingWindowSupport):
    """Moving windows of the library `limits`, in the queue's Redis and through the queue's client.

    The library's own Redis storages do not accept every form of REDIS_URL. They also open more
    connections, and write keys that a Redis user with few rights may not write.

    Args:
        redis: A client of `connection.connect`.
        keys: The queue's keys; the library passes a tenant's name as the identifier.
    """

    STORAGE_SCHEME = None

    def __init__(self, redis: AnyRedis, keys: Keys) -> None:
        super().__init__()
        self._redis, self._keys = redis, keys
        self._acquire = redis.register_script(RedisBridge.SCRIPT_ACQUIRE_MOVING_WINDOW)
        self._window = redis.register_script(RedisBridge.SCRIPT_MOVING_WINDOW)

    @property
    def base_exceptions(self) -> type[Exception]:
        """The errors that `limits` wraps.

        Redis raises none of them, so its errors stay as they are.
        """
        return ValueError

    async def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Count a call, unless the window is full."""
        args = [time.time(), limit, expiry, amount]
        return bool(await self._acquire(keys=[self._key(key)], args=args))

    async def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        """Return the start of the window and the number of its calls."""
        now_s = time.time()
        window: Any = await self._window(keys=[self._key(key)], args=[now_s - expiry, limit])
        return (float(window[0]), window[1]) if window else (now_s, 0)

    def _key(self, identifier: str) -> str:
        return self._keys.rate(identifier.split("/")[1])

    async def clear(self, key: str) -> None:
        """Delete a window."""
        await self._redis.delete(self._key(key))

    async def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        """Raise; only other strategies of `limits` use this and the four methods below."""
        raise NotImplementedError

    async def get(self, key: str) -> int:
        """Raise."""
        raise NotImplementedError

    async def get_expiry(self, key: str) -> float:
        """Raise."""
        raise NotImplementedError

    async def check(self) -> bool:
        """Raise."""
        raise NotImplementedError

    async def reset(self) -> int | None:
        """Raise."""
        raise NotImplementedError


class TenantLimits:
    """Enforces the limits of the tenants of one queue.

    Args:
        queue: The queue whose requests are counted.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._limiter = MovingWindowRateLimiter(MovingWindows(queue.redis, queue.keys))

    async def count_call(self, tenant: Tenant) -> None:
        """Count a call of a tenant.

        Raises:
            ApiError: 429 over the tenant's calls per minute; Retry-After has the seconds to wait.
        """
        item = RateLimitItemPerMinute(tenant.requests_per_minute)
        if await retry_redis(self._limiter.hit, item, tenant.name):
            return
        _refused_calls.labels("requests_per_minute").inc()
        window = await retry_redis(self._limiter.get_window_stats, item, tenant.name)
        wait_s = max(1, math.ceil(window.reset_time - time.time()))
        message = (
            f"tenant {tenant.name} made {tenant.requests_per_minute:,} calls within a minute, its limit"
            f" (requests_per_minute); call again in {wait_s} s"
        )
        headers = {"Retry-After": str(wait_s)}
        raise ApiError(429, message, code="rate_limit_exceeded", headers=headers)

    async def check_load(self, tenant: Tenant, num_bytes: int) -> None:
        """Check that one more request stays within the tenant's limits.

        Args:
            tenant: The calling tenant.
            num_bytes: Bytes of the request.

        Raises:
            LimitReached: The tenant would exceed `max_depth` or `max_bytes`.
        """
        depth, queued_bytes = await retry_redis(self._queue.tenants.load, tenant.name)
        if depth < tenant.max_depth and queued_bytes + num_bytes <= tenant.max_bytes:
            return
        _refused_calls.labels("load").inc()
        raise LimitReached(
            f"tenant {tenant.name} has {depth:,} of {tenant.max_depth:,} requests (max_depth) and"
            f" {queued_bytes:,} of {tenant.max_bytes:,} bytes (max_bytes) in the queue; wait until some have finished"
        )
