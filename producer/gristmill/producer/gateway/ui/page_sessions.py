"""Sessions of the page: a random token in a cookie, and the admin that it stands for in Redis.

So every gateway of a Redis knows every session. Redis has the token's digest only.
"""

import hmac
import ipaddress
import secrets
from typing import Any, NamedTuple

import orjson

from gristmill.producer.admins import Admins, digest_of
from gristmill.producer.gateway.call_window import CallWindow
from gristmill.producer.gateway.failover_retry import retry_redis
from gristmill.shared.keys import DirectoryKeys
from gristmill.shared.redis_types import AnyRedis

SESSION_TTL_S = 12 * 3600
"""Seconds until a session ends: a working day."""

LOGINS_A_MINUTE = 10
"""Most tries to sign in from one address, wrong and right ones."""


class Session(NamedTuple):
    """One admin who is signed in.

    Attributes:
        admin: Name of the admin key.
        token: Token of the session, as the cookie has it.
        csrf: Token that every form of this session sends back.
    """

    admin: str
    token: str
    csrf: str


class Sessions:
    """The sessions of one Redis.

    Args:
        redis: The Redis of the directory.
    """

    def __init__(self, redis: AnyRedis) -> None:
        self._redis: Any = redis
        self._keys = DirectoryKeys()
        self._admins = Admins(redis)
        self._window = CallWindow(redis)

    async def login_wait_ms(self, address: str) -> int:
        """Count a try to sign in; return 0, or the milliseconds until this address may try again."""
        return await self._window.count(self._keys.login_rate(_network(address)), LOGINS_A_MINUTE)

    async def open(self, key: str) -> Session | None:
        """Sign in with an admin key; return None if it is unknown."""
        admin = await retry_redis(self._admins.by_key, key)
        if admin is None:
            return None
        session = Session(admin.name, secrets.token_urlsafe(32), secrets.token_urlsafe(32))
        fields = {"admin": admin.name, "key_digest": admin.digest, "csrf": session.csrf}
        record = self._keys.admin_session(digest_of(session.token))
        await retry_redis(self._redis.set, record, orjson.dumps(fields), ex=SESSION_TTL_S)
        return session

    async def find(self, token: str) -> Session | None:
        """Return the session of a token, or None if it has ended or its admin key was revoked."""
        if not token:
            return None
        record = await retry_redis(self._redis.get, self._keys.admin_session(digest_of(token)))
        if record is None:
            return None
        fields = orjson.loads(record)
        admin = await retry_redis(self._admins.get, fields["admin"])
        if admin is None or not hmac.compare_digest(admin.digest, fields["key_digest"]):
            return None
        return Session(admin.name, token, fields["csrf"])

    async def close(self, token: str) -> None:
        """End a session."""
        await retry_redis(self._redis.unlink, self._keys.admin_session(digest_of(token)))


def _network(address: str) -> str:
    """Return the address that counts: one host has all 2^64 addresses of an IPv6 network.

    The addresses of IPv4 within IPv6, `::ffff:192.0.2.1`, are one network too, but hosts of their own.
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return "unknown"
    parsed = getattr(parsed, "ipv4_mapped", None) or parsed
    if parsed.version == 4:
        return str(parsed)
    return str(ipaddress.ip_network(f"{parsed}/64", strict=False).network_address)
