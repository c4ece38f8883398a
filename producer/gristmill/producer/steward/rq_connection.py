"""RQ's connections to Redis: synchronous, with undecoded replies.

RQ changes the settings of its connection pool, so the queue never shares that pool.
"""

from collections.abc import Mapping
from typing import Any

from redis import Connection, ConnectionPool, Redis, SSLConnection, UnixDomainSocketConnection
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry
from redis.sentinel import Sentinel

from gristmill.shared.connection import SENTINEL_TIMEOUT_S
from gristmill.shared.errors import SettingsError
from gristmill.shared.redis_url import RedisUrl, parse

SOCKET_TIMEOUT_S = 15.0
"""Longest wait for an answer; it exceeds the time for which RQ's worker blocks."""

EXIT_TIMEOUT_S = 2.0
"""Longest wait for an answer when the process is ending."""


def rq_connect(url: str) -> Redis:
    """Return a client for RQ, which connects at its first use.

    Args:
        url: Any form of `redis_url.parse`, except a cluster.
    """
    target = parse(url)
    options = {**_socket_options(SOCKET_TIMEOUT_S), **target.login, "db": target.db}
    if target.kind == "sentinel":
        return _through_sentinels(target, options)
    if target.kind == "socket":
        pool = ConnectionPool(UnixDomainSocketConnection, path=target.path, **options)
        return Redis.from_pool(pool)
    kind = Connection if target.tls is None else SSLConnection
    ((host, port),) = target.nodes
    return Redis.from_pool(
        ConnectionPool(kind, host=host, port=port, **(target.tls or {}), **options)
    )


def _socket_options(timeout_s: float) -> dict[str, Any]:
    return {
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": timeout_s,
        "socket_connect_timeout": min(5.0, timeout_s),
        # redis-py's handshake for maintenance events catches every exception, even the one that
        # ends the worker
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }


def _through_sentinels(target: RedisUrl, options: Mapping[str, Any]) -> Redis:
    tls = {} if target.tls is None else {"ssl": True, **target.tls}
    asking = {**_socket_options(SENTINEL_TIMEOUT_S), **target.sentinel_login, **tls}
    sentinel = Sentinel(target.nodes, sentinel_kwargs=asking)  # type: ignore[no-untyped-call]  # redis-py's
    client: Redis = sentinel.master_for(target.service, **tls, **options)  # type: ignore[no-untyped-call]
    return client


def check_access(redis: Redis) -> None:
    """Check that Redis answers and allows RQ's commands.

    Raises:
        SettingsError: The Redis user may not run the commands of RQ.
        redis.exceptions.RedisError: Redis does not answer, or refuses the user or the password.
    """
    try:
        redis.info("server")
        redis.exists("rq:queues")
    except NoPermissionError as error:
        raise SettingsError(
            f"Redis does not allow the steward RQ's commands ({error}); give its user ~gm:* ~rq:* +@all -@dangerous"
            " +info (docs/steward.md), or set RQ_REDIS_URL to another Redis"
        ) from None


def shorten_timeouts(redis: Redis) -> None:
    """Limit every further wait for an answer to `EXIT_TIMEOUT_S`; called when the process ends."""
    pool = redis.connection_pool
    pool.connection_kwargs.update(
        socket_timeout=EXIT_TIMEOUT_S, socket_connect_timeout=EXIT_TIMEOUT_S
    )
    pool.disconnect()
    pool.reset()  # open connections keep their old timeouts
