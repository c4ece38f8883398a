"""The limits of one tenant: calls per minute, requests in the queue and their bytes.

Redis counts the calls per minute by its own clock, so all gateways share one count. The gateway checks
requests and bytes before a submit, not within it. So calls at the same moment may together exceed
the limit.
"""

import math
from typing import Any

from prometheus_client import Counter

from gristmill.producer.gateway.failover_retry import retry_redis
from gristmill.producer.gateway.http_errors import ApiError
from gristmill.producer.tenants import Tenant
from gristmill.shared.errors import LimitReached
from gristmill.shared.keys import DirectoryKeys
from gristmill.shared.queue import Queue

refused_calls = Counter("gristmill_gateway_refused_calls", "Calls over a tenant's limit", ["limit"])


WINDOW_MS = 60_000

_COUNT_CALL = """
-- Count a call in a moving window, by the clock of Redis: those of several gateways differ.
-- KEYS[1]  LIST: ms of the last calls, newest first
-- ARGV     most calls in a window, length of the window in ms
-- Returns  0, or ms until the next call may come; then this one is not counted. A time that is yet to come counts as
--          long past: the clock of a new primary may be behind
local limit, window_ms = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call("TIME")
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local age_ms = now_ms - (redis.call("LINDEX", KEYS[1], limit - 1) or 0)
if age_ms >= 0 and age_ms < window_ms then
  return window_ms - age_ms
end
redis.call("LPUSH", KEYS[1], string.format("%.0f", now_ms))
redis.call("LTRIM", KEYS[1], 0, limit - 1)
redis.call("PEXPIRE", KEYS[1], window_ms)
return 0
"""


class TenantLimiter:
    """Enforces the limits of the tenants.

    Args:
        queue: The queue whose requests are counted.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._keys = DirectoryKeys()
        self._count_call: Any = queue.redis.register_script(_COUNT_CALL)

    async def count_call(self, tenant: Tenant) -> None:
        """Count a call of a tenant.

        Raises:
            ApiError: 429 over the tenant's calls per minute; Retry-After has the seconds to wait.
        """
        keys = [self._keys.rate(tenant.name)]
        args = [tenant.requests_per_minute, WINDOW_MS]
        wait_ms = await retry_redis(self._count_call, keys=keys, args=args)
        if not wait_ms:
            return
        refused_calls.labels("requests_per_minute").inc()
        wait_s = math.ceil(wait_ms / 1000)
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
        refused_calls.labels("load").inc()
        raise LimitReached(
            f"tenant {tenant.name} has {depth:,} of {tenant.max_depth:,} requests (max_depth) and"
            f" {queued_bytes:,} of {tenant.max_bytes:,} bytes (max_bytes) in the queue; wait until some have finished"
        )
