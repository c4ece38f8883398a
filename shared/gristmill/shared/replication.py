"""Write to a queue, and wait until replicas have the write.

`Queue.submit` calls it if `min_replicas` is set.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from redis.asyncio import Redis, RedisCluster

from gristmill.shared.errors import NotReplicated, SettingsError
from gristmill.shared.keys import Keys
from gristmill.shared.redis_types import AnyRedis

REPLICATION_WAIT_MS = 1000
"""Most milliseconds to wait for the replicas; a healthy replica answers within one."""


async def write_to_replicas(
    redis: AnyRedis,
    keys: Keys,
    min_replicas: int,
    submit: Callable[[Redis], Awaitable[Any]],
) -> Any:
    """Submit on one connection, then WAIT on it: WAIT covers only its connection's writes.

    Args:
        redis: The queue's client.
        keys: The queue's keys.
        min_replicas: Replicas that must have the write.
        submit: Runs the script of `submit` on the connection that it gets and returns the reply.

    Raises:
        NotReplicated: The write is in the queue, but on fewer replicas.
        SettingsError: The client is a cluster client.
    """
    if isinstance(redis, RedisCluster):
        raise SettingsError("min_replicas needs one primary, not a cluster")
    async with redis.client() as connection:
        reply = await submit(connection)
        if (
            b"accepted" not in reply
        ):  # a repeated submit wrote nothing; this write comes after the first submit's
            await connection.hincrby(keys.stats, "submitted", 0)
        reached = await connection.wait(min_replicas, REPLICATION_WAIT_MS)
    if reached < min_replicas:
        raise NotReplicated(
            f"{reached} of {min_replicas} replicas have what was submitted to queue {keys.queue} after"
            f" {REPLICATION_WAIT_MS} ms; submit it again when they are back; the"
            " operator can lower GRISTMILL_MIN_REPLICAS"
        )
    return reply
