"""How long a call of the gateway waits for an absent Redis: long enough for a failover, not for an outage."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from gristmill.shared.connection import retrying

T = TypeVar("T")

PATIENCE_S = 5.0


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat an operation that is safe to send twice, for `PATIENCE_S` at most.

    Raises:
        redis.exceptions.RedisError: The last error; the caller gets a 503.
    """
    return await retrying(call, PATIENCE_S)
