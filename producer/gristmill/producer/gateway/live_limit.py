"""The limit of live requests of one tenant, counted in Redis for all gateways of a queue.

A live request counts while it is in the queue, also after its call has ended: a caller could otherwise send requests
and hang up, as many as it likes. So nothing is counted down. Once a tenant is at its limit, the script looks which of
its live requests have ended. It looks at a part of them, so that a refused call costs Redis the same at every limit.
The part has the oldest, which end first in most cases. It also has some at random, because the oldest may wait in
a low lane.
"""

from typing import Any

from gristmill.producer.gateway.failover_retry import REDIS_RETRY_S, retry_redis
from gristmill.producer.gateway.tenant_limits import refused_calls
from gristmill.producer.tenants import Tenant
from gristmill.shared.errors import LimitReached
from gristmill.shared.queue import Queue

SUBMIT_MS = int(6 * REDIS_RETRY_S * 1000)
"""Time for which an id counts before its request is in the queue; a submit gives up after `REDIS_RETRY_S`."""

TTL_MS = 24 * 3600 * 1000
"""Time after which Redis deletes the ids of a tenant that sends no more live requests."""

OLDEST = 128
"""Oldest ids at which one call of a tenant at its limit looks."""

AT_RANDOM = 256
"""Ids at random at which it looks too: all of a tenant with the default limit."""

_COUNT = """
-- Count a live request of a tenant, unless the tenant is at its limit. The same id again counts once.
-- KEYS[1]  ZSET: ids of live requests -> moment in ms until which an id counts though its request is not queued yet
-- ARGV     id ("" only counts), most live requests, ms that a submit may take, TTL in ms,
--          beginning of the keys of requests, and of those of results, ids to look at: oldest, at random
-- Returns  live requests, this one included if it is counted; then 1 if it is counted, else 0
local id, limit, submit_ms, ttl_ms, requests, results = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], ARGV[5], ARGV[6]
local oldest, at_random = tonumber(ARGV[7]), tonumber(ARGV[8])
local time = redis.call("TIME")
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

local function has_ended(id, until_ms)
  return redis.call("EXISTS", requests .. id) == 0
    and (now_ms > tonumber(until_ms) or redis.call("EXISTS", results .. id) == 1)
end

local function drop_ended(members)
  for i = 1, #members, 2 do
    if has_ended(members[i], members[i + 1]) then
      redis.call("ZREM", KEYS[1], members[i])
    end
  end
end

local is_known = id ~= "" and redis.call("ZSCORE", KEYS[1], id)
if id == "" or (not is_known and redis.call("ZCARD", KEYS[1]) >= limit) then
  drop_ended(redis.call("ZRANGE", KEYS[1], 0, oldest - 1, "WITHSCORES"))
  drop_ended(redis.call("ZRANDMEMBER", KEYS[1], at_random, "WITHSCORES"))
end
local number = redis.call("ZCARD", KEYS[1])
if id == "" or (not is_known and number >= limit) then
  return { number, 0 }
end
redis.call("ZADD", KEYS[1], string.format("%.0f", now_ms + submit_ms), id)
redis.call("PEXPIRE", KEYS[1], ttl_ms)
return { redis.call("ZCARD", KEYS[1]), 1 }
"""


class LiveLimit:
    """Enforces the limit of live requests of each tenant.

    Args:
        queue: The queue that has the requests.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._script: Any = queue.redis.register_script(_COUNT)

    async def add(self, tenant: Tenant, request_id: str) -> None:
        """Count a live request before it is submitted. It counts until it ends.

        At the limit, a request that the queue has already passes: it adds nothing.

        Raises:
            LimitReached: The tenant has `max_live` live requests.
        """
        number, is_counted = await self._count(tenant, request_id)
        if not is_counted and not await self._is_known(request_id):
            refused_calls.labels("live").inc()
            raise LimitReached(
                f"tenant {tenant.name} has {number:,} of {tenant.max_live:,} live requests (max_live) in the queue;"
                " call again when some have ended, send files as POST /v1/batches, or ask the operator:"
                f" gristmill tenant change {tenant.name} --max-live NUMBER"
            )

    async def drop_refused(self, tenant: Tenant, request_id: str) -> None:
        """Stop counting a request that the queue refused, unless it has one of this id from an earlier call."""
        if not await self._is_known(request_id):
            redis: Any = self._queue.redis
            await retry_redis(redis.zrem, self._queue.keys.live(tenant.name), request_id)

    async def number(self, tenant: Tenant) -> int:
        """Return how many live requests of a tenant count for its limit.

        Above `AT_RANDOM`, some of them may have ended: a call looks at a part of them.
        """
        number, _ = await self._count(tenant, "")
        return number

    async def _is_known(self, request_id: str) -> bool:
        ((state, _),) = await retry_redis(self._queue.status, [request_id])
        return state != "unknown"

    async def _count(self, tenant: Tenant, request_id: str) -> tuple[int, int]:
        keys = self._queue.keys
        args = [
            request_id, tenant.max_live, SUBMIT_MS, TTL_MS, keys.request(""), keys.result(""), OLDEST, AT_RANDOM
        ]  # fmt: skip
        number, is_counted = await retry_redis(
            self._script, keys=[keys.live(tenant.name)], args=args
        )
        return int(number), int(is_counted)
