"""The gateway's retry of Redis calls. It lasts long enough for a failover, not for an outage."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import ParamSpec, TypeVar

from gristmill.shared.redis_retry import retrying

P = ParamSpec("P")
T = TypeVar("T")

REDIS_RETRY_S = 5.0
"""Longest time that one HTTP call waits for Redis."""


async def retry_redis(operation: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call an operation and repeat it until Redis answers, for `REDIS_RETRY_S` at most.

    Args:
        operation: Operation that may safely be sent twice.
        args: Arguments of the operation.
        kwargs: Keyword arguments of the operation.

    Raises:
        redis.exceptions.RedisError: The last error; the caller gets a 503.
    """
    return await retrying(partial(operation, *args, **kwargs), REDIS_RETRY_S)
