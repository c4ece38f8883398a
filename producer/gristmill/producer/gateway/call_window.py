"""Count calls in a moving minute, in Redis for all gateways together: the calls of tenants, and tries to sign in."""

from typing import Any

from gristmill.producer.gateway.failover_retry import retry_redis
from gristmill.shared.redis_types import AnyRedis

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


class CallWindow:
    """Counts calls within the last minute.

    Args:
        redis: Redis of the directory.
    """

    def __init__(self, redis: AnyRedis) -> None:
        connected: Any = redis
        self._count_call: Any = connected.register_script(_COUNT_CALL)

    async def count(self, key: str, limit: int) -> int:
        """Count a call; return 0, or the milliseconds until the next call may come. Such a call is not counted.

        Args:
            key: Key of the LIST that has the calls.
            limit: Most calls within a minute.
        """
        wait_ms: int = await retry_redis(self._count_call, keys=[key], args=[limit, WINDOW_MS])
        return wait_ms
