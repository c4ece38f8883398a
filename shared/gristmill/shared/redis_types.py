"""The types of a Redis client and of what runs the scripts of a queue."""

from typing import Any, Protocol

from redis.asyncio import Redis, RedisCluster

AnyRedis = Redis | RedisCluster
"""A client for one server, Sentinel or a cluster; `connection.connect` makes one."""


class ScriptRunner(Protocol):
    """The scripts of a queue, as `Scripts` runs them."""

    async def run(self, verb: str, *args: str | float | bytes) -> Any:
        """Run the script of a verb and return its reply."""
