"""Extend redis-py's clients for Sentinel and for Redis Cluster, as `connect` needs them.

redis-py follows a failover by itself. The sentinel pool asks for the primary at each new
connection. The cluster client reads the slots again after a lost connection, and obeys MOVED and
ASK. The classes here make both close all connections, and raise errors that `is_transient` can
classify.
"""

from typing import Any

from redis.asyncio import RedisCluster
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.exceptions import ConnectionError, RedisClusterException, RedisError


class SentinelPool(SentinelConnectionPool):
    """A pool of connections to the primary; it closes the connections to the sentinels too.

    Args:
        service: Name of the primary at the sentinels.
        sentinel: Clients of the sentinels; the pool owns and closes them.
        **options: Options of each connection.
    """

    def __init__(self, service: str, sentinel: Sentinel, **options: Any) -> None:
        super().__init__(service, sentinel, **options)  # type: ignore[no-untyped-call]  # redis-py's

    async def aclose(self) -> None:
        """Close all connections."""
        await super().aclose()
        await self.sentinel_manager.aclose()


class Cluster(RedisCluster):
    """A cluster client that closes all connections, and says why it cannot read the slots."""

    async def initialize(self, *args: Any, **kwargs: Any) -> "Cluster":
        """Read the slots from the first node that answers.

        Raises:
            redis.exceptions.RedisError: Error of the last node. redis-py's own error is not a
                RedisError.
        """
        try:
            await super().initialize(*args, **kwargs)
        except RedisClusterException as error:
            raise _first_cause(error) from error
        return self

    async def aclose(self) -> None:
        """Close all connections, even after a lost one, when redis-py would close none."""
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
