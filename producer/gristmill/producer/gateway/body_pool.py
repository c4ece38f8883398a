"""The memory for the bodies that a gateway reads, and the shares of it that callers may hold.

A body holds its bytes until its request is queued; one that stalls, until its time is up. So no caller may hold all of
the memory. Small bodies have a pool of their own, and never wait behind large ones.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from gristmill.producer.gateway.http_errors import RETRY_AFTER_S, ApiError

SMALL_BODY_BYTES = 2**20
"""Largest body that counts as small."""

SMALL_POOL_BYTES = 64 * 2**20
"""Most bytes of all small bodies at a time."""

LARGE_POOL_BODIES = 4
"""Number of the largest bodies that fit into the other pool, so that one address can always send one."""

TENANT_PART, ADDRESS_PART = 2, 4
"""A tenant may hold half of each pool, and one of its addresses a quarter."""


class Caller(NamedTuple):
    """Who sends a body.

    Attributes:
        tenant: Name of the tenant; the address again if the call has no key.
        address: IP address of the connection's other end.
    """

    tenant: str
    address: str


class BodyPool:
    """Counts the bytes that callers hold.

    Args:
        max_bytes: Most bytes of all callers together.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held: Counter[tuple[str, ...]] = Counter()

    def take(self, caller: Caller, num_bytes: int) -> None:
        """Take bytes for a caller.

        Raises:
            ApiError: 429 over the share of the tenant or of the address; 503 if the pool is full.
        """
        for holder, part in (((*caller,), ADDRESS_PART), (caller[:1], TENANT_PART), ((), 1)):
            limit = self._max_bytes // part
            if self._held[holder] + num_bytes > limit:
                raise _no_room(holder, self._held[holder], num_bytes, limit)
        self._count(caller, num_bytes)

    def give_back(self, caller: Caller, num_bytes: int) -> None:
        """Give back bytes that a caller took."""
        self._count(caller, -num_bytes)

    def _count(self, caller: Caller, num_bytes: int) -> None:
        for holder in ((*caller,), caller[:1], ()):
            self._held[holder] += num_bytes
            if not self._held[holder]:
                del self._held[holder]


def _no_room(holder: tuple[str, ...], held: int, num_bytes: int, limit: int) -> ApiError:
    status, code, who = 503, "gateway_busy", "the callers of this gateway"
    if holder:
        status, code, who = 429, "limit_reached", f"the calls of {' from '.join(holder)}"
    return ApiError(
        status,
        f"{who} are sending {held:,} bytes of bodies and this call needs {num_bytes:,} more; the limit is"
        f" {limit:,} at a time; call again when some have arrived",
        code=code,
        headers={"Retry-After": str(RETRY_AFTER_S)},
    )


class BodyShare:
    """The bytes that one call holds, in one of two pools.

    Args:
        small: Pool of bodies of up to `SMALL_BODY_BYTES`.
        large: Pool of the others.
        caller: Who sends the body.
    """

    def __init__(self, small: BodyPool, large: BodyPool, caller: Caller) -> None:
        self._small, self._large, self._caller = small, large, caller
        self._pool, self._num_bytes = small, 0

    def resize(self, num_bytes: int) -> None:
        """Hold this number of bytes instead of the number so far.

        Raises:
            ApiError: 429 or 503: there is no room; the call then holds nothing.
        """
        self._pool.give_back(self._caller, self._num_bytes)
        self._num_bytes = 0
        self._pool = self._small if num_bytes <= SMALL_BODY_BYTES else self._large
        self._pool.take(self._caller, num_bytes)
        self._num_bytes = num_bytes


class BodyPools:
    """Both pools of a gateway.

    Args:
        largest_bytes: Bytes of the largest body that the gateway reads into memory.
    """

    def __init__(self, largest_bytes: int) -> None:
        self._small = BodyPool(SMALL_POOL_BYTES)
        self._large = BodyPool(LARGE_POOL_BODIES * max(largest_bytes, SMALL_POOL_BYTES // 2))

    @contextmanager
    def share(self, caller: Caller) -> Iterator[BodyShare]:
        """Yield the share of one call; the end of the block gives its bytes back."""
        share = BodyShare(self._small, self._large, caller)
        try:
            yield share
        finally:
            share.resize(0)
