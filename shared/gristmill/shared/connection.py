"""Make the Redis client of the hot path, for one server, Sentinel or a cluster.

redis-py's defaults retry writes and lose pops (docs/decisions/0003-redis-client.md), so the client neither
retries nor decodes. `redis_retry.retrying` repeats whole operations.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from redis.asyncio import Connection, ConnectionPool, Redis, SSLConnection
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import AbstractConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import (
    Sentinel,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)
from redis.backoff import NoBackoff
from redis.connection import HiredisRespSerializer
from redis.exceptions import ConnectionError

from gristmill.shared.errors import SettingsError
from gristmill.shared.redis_types import AnyRedis
from gristmill.shared.redis_url import RedisUrl, parse
from gristmill.shared.topology import Cluster, SentinelPool

MAX_CONNECTIONS = 10_000
"""Most connections of one client: a Redis server accepts this number of clients by default. With
redis-py's default of 100, the 101st waiting call fails."""

SENTINEL_TIMEOUT_S = 2.0
"""Most seconds to wait for one sentinel; then the client asks the next."""


def connect(url: str, socket_timeout_s: float = 30.0) -> AnyRedis:
    """Return a client for a URL; it connects at its first use.

    Args:
        url: URL in any form that `redis_url.parse` reads.
        socket_timeout_s: Most seconds to wait for an answer; must be above any blocking time.

    Raises:
        SettingsError: The URL cannot be read, or names a missing file. The message repeats no
            secret.
    """
    target = parse(url)
    for name, path in target.tls_files.items():
        if not Path(path).is_file():
            raise SettingsError(f"REDIS_URL: the file that {name} names is not there: {path}")
    options = {**_socket_options(socket_timeout_s), **target.login}
    if target.kind == "cluster":
        return _cluster(target, options)
    pool = _sentinel_pool(target, options) if target.kind == "sentinel" else _pool(target, options)
    return Redis.from_pool(pool)


def _socket_options(timeout_s: float) -> dict[str, Any]:
    return {
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": timeout_s,
        "socket_connect_timeout": min(5.0, timeout_s),
        "health_check_interval": 0,
        "max_connections": MAX_CONNECTIONS,
        "decode_responses": False,
    }


def _pool(target: RedisUrl, options: Mapping[str, Any]) -> ConnectionPool:
    if target.kind == "socket":
        kind: type[AbstractConnection] = UnixDomainSocketConnection
        place: dict[str, Any] = {"path": target.path}
    else:
        kind = Connection if target.tls is None else SSLConnection
        ((host, port),) = target.nodes
        place = {"host": host, "port": port, **(target.tls or {})}
    return ConnectionPool(_packed(kind), db=target.db, **place, **options)


def _sentinel_pool(target: RedisUrl, options: Mapping[str, Any]) -> SentinelPool:
    tls = {} if target.tls is None else {"ssl": True, **target.tls}
    asking = _socket_options(min(SENTINEL_TIMEOUT_S, options["socket_timeout"]))
    asking = {**asking, **target.sentinel_login, **tls}
    sentinel = Sentinel(target.nodes, sentinel_kwargs=asking)  # type: ignore[no-untyped-call]  # redis-py's
    kind = SentinelManagedConnection if target.tls is None else SentinelManagedSSLConnection
    return SentinelPool(
        target.service,
        sentinel,
        connection_class=_packed(kind),
        db=target.db,
        **(target.tls or {}),
        **options,
    )


def _cluster(target: RedisUrl, options: Mapping[str, Any]) -> Cluster:
    nodes = [ClusterNode(host, port) for host, port in target.nodes]
    client = Cluster(
        startup_nodes=nodes, ssl=target.tls is not None, **(target.tls or {}), **options
    )
    packed = _packed(client.connection_kwargs["connection_class"])
    client.connection_kwargs["connection_class"] = packed  # for nodes that it discovers later
    for node in client.startup_nodes:
        node.connection_class = packed  # type: ignore[assignment]  # a mixin before a Connection
    return client


class _PackedByHiredis(AbstractConnection):
    """A mixin that packs commands with hiredis, and raises a ConnectionError when uvloop's transport is closed.

    redis-py's synchronous connections use hiredis too; its asyncio ones pack in Python. Packing
    with hiredis halves a client's time for a bulk submit.
    """

    pack_command = HiredisRespSerializer.pack  # type: ignore[assignment]  # the same, in C

    async def send_packed_command(self, *args: Any, **options: Any) -> None:
        """Send a command.

        A Redis that restarts may close a connection between its opening and its first command. asyncio's transports
        then drop what is written, but uvloop's raise a RuntimeError, which no retry expects.
        """
        try:
            await super().send_packed_command(*args, **options)
        except RuntimeError as error:
            raise ConnectionError(str(error)) from error


def _packed(kind: type[AbstractConnection]) -> type[AbstractConnection]:
    return type("PackedConnection", (_PackedByHiredis, kind), {})
