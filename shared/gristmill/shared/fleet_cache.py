"""Read the fleet of a queue, and keep it for some seconds; clients and workers use it."""

import asyncio
import time
from collections.abc import Sequence

from gristmill.shared.fleet import Fleet, read_served
from gristmill.shared.queue import Queue
from gristmill.shared.redis_retry import retrying
from gristmill.shared.request import Request

FRESH_S = 5.0
"""Default of `fresh_s`; afterwards the next request reads the fleet again."""


class FleetCache:
    """The fleet of one queue, read again after a few seconds or before a request is refused.

    Args:
        queue: The queue.
        fresh_s: Seconds for which a fleet is taken as known.
    """

    def __init__(self, queue: Queue, fresh_s: float = FRESH_S) -> None:
        self._queue = queue
        self._fresh_s = fresh_s
        self._reading = asyncio.Lock()
        self._fleet: Fleet | None = None
        self._read_at_s = 0.0

    async def fleet(self) -> Fleet:
        """Return the fleet, at most `fresh_s` seconds old."""
        async with self._reading:
            if self._fleet is None or time.monotonic() - self._read_at_s > self._fresh_s:
                self._fleet = await retrying(lambda: read_fleet(self._queue))
                self._read_at_s = time.monotonic()
            return self._fleet

    async def answers(self, model: str, endpoint: str) -> bool:
        """Return whether some worker serves requests for a model (or any, if empty) and an endpoint."""
        return (await self.fleet()).answers(model, endpoint)

    async def check(self, requests: Sequence[Request]) -> None:
        """Check that some worker serves each request, or that the queue has it already.

        The fleet is read again before a request is refused.

        Raises:
            NotServed: No worker serves one of them.
        """
        if not any(map((await self.fleet()).refusal, requests)):
            return
        self._fleet = None
        refusals = list(map((await self.fleet()).refusal, requests))
        ids = [request.id for request in requests]
        states = await retrying(lambda: self._queue.status(ids))
        for refusal, (state, _) in zip(refusals, states, strict=True):
            if refusal and state == "unknown":  # a known request was accepted before
                raise refusal


async def read_fleet(queue: Queue) -> Fleet:
    """Read what the live workers of a queue serve."""
    leases = (await queue.stats()).workers
    alive = [worker for worker, remaining_ms in leases.items() if remaining_ms > 0]
    workers = await read_served(queue, alive)
    lengths: dict[str, int] = {}
    for served in workers.values():
        for name in served.models:
            lengths[name] = max(served.max_model_len, lengths.get(name, 0))
    return Fleet(
        queue=queue.keys.queue,
        workers=workers,
        max_model_len=lengths,
        endpoints=frozenset(path for served in workers.values() for path in served.endpoints),
        is_known=bool(workers)
        and all(served.models and served.endpoints for served in workers.values()),
    )
