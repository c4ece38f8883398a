"""Clients of Redis behind Sentinel and of a Redis Cluster, as `connect` needs them.

redis-py follows a failover by itself: the sentinel pool asks for the primary at each new connection, the
cluster client reads the slots anew after a lost connection and obeys MOVED and ASK. What is added here
makes them end like a client of one server: everything closed, and errors that `is_transient` can judge.
"""

from typing import Any

from redis.asyncio import RedisCluster
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.exceptions import ConnectionError, RedisClusterException, RedisError


class SentinelPool(SentinelConnectionPool):
    """Connections to the primary that the sentinels name; closes those to the sentinels too.

    Args:
        service: What the sentinels call the primary.
        sentinel: Clients of the sentinels, owned from now on.
        **options: Of each connection.
    """

    def __init__(self, service: str, sentinel: Sentinel, **options: Any) -> None:
        super().__init__(service, sentinel, **options)  # type: ignore[no-untyped-call]  # redis-py's

    async def aclose(self) -> None:
        """Close all connections."""
        await super().aclose()
        await self.sentinel_manager.aclose()


class Cluster(RedisCluster):
    """A cluster client that closes whole, and that says why it cannot learn the slots."""

    async def initialize(self, *args: Any, **kwargs: Any) -> "Cluster":
        """Read the slots from whichever node answers.

        Raises:
            redis.exceptions.RedisError: What the last node said; redis-py's own error is none of them.
        """
        try:
            await super().initialize(*args, **kwargs)
        except RedisClusterException as error:
            raise _first_cause(error) from error
        return self

    async def aclose(self) -> None:
        """Close all connections, also after a lost one, when redis-py thinks there are none."""
        self._initialize = False
        await super().aclose()


def _first_cause(error: BaseException) -> RedisError:
    """Return what a node answered, or a lost connection if none did."""
    cause = error
    while isinstance(cause, RedisClusterException):
        found = cause.__cause__ or cause.__context__
        if found is None:
            return ConnectionError(str(error))
        cause = found
    return cause if isinstance(cause, RedisError) else ConnectionError(str(cause))
