"""Hold the lease that tells workers that a producer is still submitting.

A client holds it for a call whose input takes more than one chunk, and a steward while a batch has lines to submit.
Workers with `--until-empty` wait for it. A single `submit` needs none, because its request is in the queue at once.
"""

import asyncio
from contextlib import suppress
from typing import Self

from redis.exceptions import RedisError

from gristmill.shared.errors import WrongFormat
from gristmill.shared.queue import Queue
from gristmill.shared.redis_retry import retrying
from gristmill.shared.tasks import end

RENEWALS_A_LEASE = 5
"""Renewals in the time of one lease, as of a worker's."""

REFUSALS = (RedisError, WrongFormat)
"""Errors of a Redis that refuses the lease."""

END_S = 1.0
"""Most seconds to wait for the end of the lease when the client closes; after that it runs out."""


class SubmitLease:
    """The lease of one producer, which all its calls share.

    Args:
        queue: Queue that gets the requests.
        name: Unique name of the producer.
    """

    def __init__(self, queue: Queue, name: str) -> None:
        self._producers = queue.producers
        self._name = name
        self._changing = asyncio.Lock()
        self._released = asyncio.Event()
        self._num_holds = 0
        self._is_closed = False
        self._is_held = False
        self._keeping: asyncio.Task[None] | None = None

    async def take(self) -> None:
        """Hold the lease once more; return when Redis has it."""
        async with self._changing:
            if self._keeping is None:  # first, so that it ends the lease if this call is cancelled
                self._keeping = asyncio.create_task(self._keep())
            if not self._is_held:
                await retrying(self._renew)
                self._is_held = True
            self._num_holds += 1
            self._released.clear()

    def give_back(self) -> None:
        """Hold the lease once less. The last holder ends it, but does not wait for Redis."""
        self._num_holds -= 1
        if not self._num_holds:
            self._released.set()

    async def aclose(self) -> None:
        """End the lease, also if somebody still holds it; wait at most `END_S`."""
        self._is_closed = True
        self._released.set()
        if keeping := self._keeping:
            await asyncio.wait([keeping], timeout=END_S)
            await end(keeping)

    async def _keep(self) -> None:
        """Renew the lease until nobody holds it, then end it."""
        interval_s = self._producers.lease_ms / 1000 / RENEWALS_A_LEASE
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._released.wait(), interval_s)
            async with self._changing:
                if not self._num_holds or self._is_closed:
                    return await self._end()
            with suppress(*REFUSALS):  # the calls of the producer raise them
                await retrying(self._renew)

    async def _end(self) -> None:
        self._is_held, self._keeping = False, None
        with suppress(*REFUSALS, OSError):  # then it runs out
            await self._producers.end(self._name)

    async def _renew(self) -> None:
        await self._producers.hold(self._name)


class Hold:
    """The hold of one call on the lease of its producer; a context manager that gives it back.

    Args:
        lease: The lease; the call holds it from its first `take`.
    """

    def __init__(self, lease: SubmitLease) -> None:
        self._lease = lease
        self._is_taken = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back()

    async def take(self) -> None:
        """Hold the lease; do nothing if it is held already."""
        if not self._is_taken:
            await self._lease.take()
            self._is_taken = True

    def give_back(self) -> None:
        """Hold the lease no longer; do nothing if it is not held."""
        if self._is_taken:
            self._is_taken = False
            self._lease.give_back()
