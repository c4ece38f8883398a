"""The limits of one tenant: calls per minute, requests in the queue and their bytes.

Redis counts the calls per minute by its own clock, so all gateways share one count. The gateway checks
requests and bytes before a submit, not within it. So calls at the same moment may together exceed
the limit.
"""

import math

from prometheus_client import Counter

from gristmill.producer.gateway.call_window import CallWindow
from gristmill.producer.gateway.failover_retry import retry_redis
from gristmill.producer.gateway.http_errors import ApiError
from gristmill.producer.tenants import Tenant
from gristmill.shared.errors import LimitReached
from gristmill.shared.keys import DirectoryKeys
from gristmill.shared.queue import Queue

refused_calls = Counter("gristmill_gateway_refused_calls", "Calls over a tenant's limit", ["limit"])


class TenantLimiter:
    """Enforces the limits of the tenants.

    Args:
        queue: The queue whose requests are counted.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._keys = DirectoryKeys()
        self._window = CallWindow(queue.redis)

    async def count_call(self, tenant: Tenant) -> None:
        """Count a call of a tenant.

        Raises:
            ApiError: 429 over the tenant's calls per minute; Retry-After has the seconds to wait.
        """
        wait_ms = await self._window.count(self._keys.rate(tenant.name), tenant.requests_per_minute)
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
