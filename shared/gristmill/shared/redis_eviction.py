"""Warn of a Redis that may evict requests and results. Workers, gateways, stewards and clients ask once."""

from typing import Any

from redis.exceptions import RedisError

from gristmill.shared.log import warn
from gristmill.shared.redis_types import AnyRedis
from gristmill.shared.redis_url import redacted

SAFE_POLICY = "noeviction"


async def warn_of_eviction(redis: AnyRedis, url: str) -> None:
    """Warn if Redis has another `maxmemory-policy` than `noeviction`.

    A user may lack the right to ask (`+info`); then nothing is known, and nothing is said.

    Args:
        redis: Client of the queue.
        url: Its URL; the warning has it without user and password.
    """
    policy = await _policy(redis)
    if policy in (None, SAFE_POLICY):
        return
    where = redacted(url)
    remedy = f"CONFIG SET maxmemory-policy {SAFE_POLICY}, or requests and results are lost"
    message = (
        f"Redis at {where} may evict requests and results when its memory is full (maxmemory-policy {policy});"
        f" set it: CONFIG SET maxmemory-policy {SAFE_POLICY}"
    )
    warn("redis.evicts", message, url=where, policy=policy, remedy=remedy)


async def _policy(redis: AnyRedis) -> str | None:
    connected: Any = redis
    try:
        policy: str | None = (await connected.info("memory")).get("maxmemory_policy")
    except (RedisError, OSError):
        return None
    return policy
