"""The limit of live requests of one tenant, counted in the directory for all gateways and queues of a Redis.

A live request counts while it is in its queue, also after its call has ended. Otherwise a caller could send any number
of requests and hang up. So the end of a call changes no count. Once a tenant is at its limit, the gateway checks which
of its live requests have ended, and removes those. It checks a sample, so that a refused call costs Redis the same at
every limit. The sample has the oldest requests, which in most cases end first. It also has random ones, because all of
the oldest may wait in a queue without workers.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from gristmill.producer.gateway.failover_retry import REDIS_RETRY_S, retry_redis
from gristmill.producer.gateway.tenant_limits import refused_calls
from gristmill.producer.tenants import Tenant
from gristmill.shared.chunking import pairs
from gristmill.shared.errors import LimitReached
from gristmill.shared.keys import DirectoryKeys, Keys
from gristmill.shared.queue import Queue
from gristmill.shared.redis_types import AnyRedis

SUBMIT_MS = int(6 * REDIS_RETRY_S * 1000)
"""Milliseconds for which a request counts before its queue has it; a submit gives up after `REDIS_RETRY_S`."""

TTL_MS = 24 * 3600 * 1000
"""Milliseconds after the last live request of a tenant until Redis deletes its ids."""

OLDEST = 128
"""Oldest requests in the sample."""

AT_RANDOM = 256
"""Random requests in the sample: as many as the default limit, so that it then has all."""

_COUNT = """
-- Count a live request of a tenant, unless the tenant is at its limit. The same request again counts once.
-- KEYS[1]  ZSET: "<queue>|<id>" of live requests -> ms until which one counts although its queue does not have it yet
-- ARGV     "<queue>|<id>" ("" to count none), most live requests, ms that a submit may take, TTL in ms,
--          size of the sample: oldest, random; then the requests that have ended, each with its score
-- Returns  number of live requests; 1 if this one is among them, else 0; ms of the clock;
--          if it is not, the sample: requests of the tenant, each with its score
local member, limit, submit_ms, ttl_ms, oldest, at_random = unpack(ARGV, 1, 6)
local time = redis.call("TIME")
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
for i = 7, #ARGV, 2 do
  if redis.call("ZSCORE", KEYS[1], ARGV[i]) == ARGV[i + 1] then -- another score: a repeat counted it again
    redis.call("ZREM", KEYS[1], ARGV[i])
  end
end
local number = redis.call("ZCARD", KEYS[1])
if member == "" or (number >= tonumber(limit) and not redis.call("ZSCORE", KEYS[1], member)) then
  local found = redis.call("ZRANGE", KEYS[1], 0, oldest - 1, "WITHSCORES")
  for _, value in ipairs(redis.call("ZRANDMEMBER", KEYS[1], at_random, "WITHSCORES")) do
    found[#found + 1] = value
  end
  return { number, 0, now_ms, unpack(found) }
end
redis.call("ZADD", KEYS[1], string.format("%.0f", now_ms + submit_ms), member)
redis.call("PEXPIRE", KEYS[1], ttl_ms)
return { redis.call("ZCARD", KEYS[1]), 1, now_ms }
"""

_ENDED = """
-- Return which of some live requests have ended.
-- KEYS[1]  prefix of the keys of their queue
-- ARGV     ms of the directory's clock, then for each request: id, its score
-- Returns  1 for a request that has ended, 0 for another one
local ended = {}
for i = 2, #ARGV, 2 do
  local has_ended = redis.call("EXISTS", KEYS[1] .. "request:" .. ARGV[i]) == 0
    and (tonumber(ARGV[1]) > tonumber(ARGV[i + 1]) or redis.call("EXISTS", KEYS[1] .. "result:" .. ARGV[i]) == 1)
  ended[#ended + 1] = has_ended and 1 or 0
end
return ended
"""


class LiveLimit:
    """Enforces the limit of live requests of each tenant.

    Args:
        redis: The Redis of the queues.
    """

    def __init__(self, redis: AnyRedis) -> None:
        self._redis: Any = redis
        self._keys = DirectoryKeys()
        self._count_script: Any = redis.register_script(_COUNT)
        self._ended_script: Any = redis.register_script(_ENDED)

    async def add(self, tenant: Tenant, queue: Queue, request_id: str) -> None:
        """Count a live request before it is submitted. It counts until it ends.

        A repeat of a request that is in the queue passes at the limit, because it adds nothing.

        Args:
            tenant: The calling tenant.
            queue: The queue of the request.
            request_id: Its id.

        Raises:
            LimitReached: The tenant has `max_live` live requests.
        """
        number, is_counted = await self._count(tenant, _member(queue, request_id))
        if not is_counted and not await _is_known(queue, request_id):
            refused_calls.labels("live").inc()
            raise LimitReached(
                f"tenant {tenant.name} has {number:,} of {tenant.max_live:,} live requests (max_live) in the queues;"
                " call again when some have ended, send files as POST /v1/batches, or ask the operator:"
                f" gristmill tenant change {tenant.name} --max-live NUMBER"
            )

    async def drop_refused(self, tenant: Tenant, queue: Queue, request_id: str) -> None:
        """Stop counting a request that the queue refused, unless an earlier call has queued one of this id."""
        if not await _is_known(queue, request_id):
            key = self._keys.live(tenant.name)
            await retry_redis(self._redis.zrem, key, _member(queue, request_id))

    async def number(self, tenant: Tenant) -> int:
        """Return how many live requests of a tenant count for its limit.

        Above `AT_RANDOM`, the number may include some that have ended, because a call checks only a sample.
        """
        number, _ = await self._count(tenant, "")
        return number

    async def _count(self, tenant: Tenant, member: str) -> tuple[int, bool]:
        """Count a request; return the number of the tenant's live requests, and whether this one is among them."""
        number, is_counted, now_ms, *sample = await self._run_count(tenant, member)
        if not is_counted and (ended := await self._ended(now_ms, sample)):
            number, is_counted, *_ = await self._run_count(tenant, member, *ended)
        return int(number), bool(is_counted)

    async def _run_count(self, tenant: Tenant, member: str, *ended: bytes) -> Sequence[Any]:
        args = [member, tenant.max_live, SUBMIT_MS, TTL_MS, OLDEST, AT_RANDOM, *ended]
        keys = [self._keys.live(tenant.name)]
        counted: Sequence[Any] = await retry_redis(self._count_script, keys=keys, args=args)
        return counted

    async def _ended(self, now_ms: int, sample: Sequence[bytes]) -> Sequence[bytes]:
        """Return the requests of a sample that have ended, each with its score."""
        by_queue = defaultdict[str, dict[str, bytes]](dict)
        for member, until_ms in pairs(sample):
            queue, _, request_id = member.partition("|")
            by_queue[queue][request_id] = until_ms
        ended: list[Any] = []
        for queue, found in by_queue.items():
            args = [now_ms, *(word for pair in found.items() for word in pair)]
            codes = await retry_redis(self._ended_script, keys=[Keys(queue).prefix], args=args)
            for (request_id, until_ms), code in zip(found.items(), codes, strict=True):
                ended += [f"{queue}|{request_id}", until_ms] if code else []
        return ended


def _member(queue: Queue, request_id: str) -> str:
    return f"{queue.keys.queue}|{request_id}"


async def _is_known(queue: Queue, request_id: str) -> bool:
    ((state, _),) = await retry_redis(queue.status, [request_id])
    return state != "unknown"
