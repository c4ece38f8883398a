"""Find out what the live workers of a queue serve, and refuse requests that none of them serves.

Producers check before they submit: a worker would refuse an unknown model too, but long afterwards. A queue
without workers takes every request, since workers may come later.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gristmill.shared.errors import NotServed
from gristmill.shared.queue import Queue
from gristmill.shared.redis_retry import retrying
from gristmill.shared.request import ENDPOINTS, Request

FRESH_S = 5.0
"""Seconds for which a fleet is taken as known; afterwards the next request reads it again."""

NUM_NAMED = 10
"""Models that an error names; it counts the others."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The models and endpoints that the live workers of a queue serve.

    Attributes:
        queue: Name of the queue.
        max_model_len: Each served model, adapters included -> prompt and output tokens; 0 if no worker says.
        endpoints: Paths that some worker answers.
        is_known: True if every worker says what it serves; otherwise no request is refused.
    """

    queue: str
    max_model_len: Mapping[str, int]
    endpoints: frozenset[str]
    is_known: bool

    def check(self, request: Request) -> None:
        """Check that some worker serves a request, or that there are no workers yet.

        Raises:
            NotServed: There are workers, but none serves it.
        """
        if refusal := self.refusal(request):
            raise refusal

    def refusal(self, request: Request) -> NotServed | None:
        """Return the error for a request that no worker serves, or None."""
        if not self.is_known:
            return None
        if request.model and request.model not in self.max_model_len:
            what = f"model {request.model[:200]!r}"
            words = self._words(what, sorted(self.max_model_len))
            return NotServed(words, "model_not_found", request_id=request.id)
        if request.endpoint not in self.endpoints:
            words = self._words(request.endpoint, sorted(self.endpoints.intersection(ENDPOINTS)))
            return NotServed(words, "endpoint_not_served", request_id=request.id)
        return None

    def _words(self, what: str, served: list[str]) -> str:
        more = f" and {len(served) - NUM_NAMED} more" if len(served) > NUM_NAMED else ""
        return (
            f"no worker of queue {self.queue} serves {what}; they serve"
            f" {', '.join(served[:NUM_NAMED])}{more}. Ask for one of these; if a"
            " worker for it comes later, the operator can have requests wait for it: GRISTMILL_CHECK_MODELS=false"
        )


class FleetCache:
    """The fleet of one queue, read again after a few seconds or before a request is refused.

    Args:
        queue: The queue.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._reading = asyncio.Lock()
        self._fleet: Fleet | None = None
        self._read_at_s = 0.0

    async def fleet(self) -> Fleet:
        """Return the fleet, at most `FRESH_S` seconds old."""
        async with self._reading:
            if self._fleet is None or time.monotonic() - self._read_at_s > FRESH_S:
                self._fleet = await retrying(lambda: read_fleet(self._queue))
                self._read_at_s = time.monotonic()
            return self._fleet

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
    facts = await asyncio.gather(*(_facts(queue, worker) for worker in alive))
    lengths: dict[str, int] = {}
    for models, _, length in facts:
        for name in models:
            lengths[name] = max(length, lengths.get(name, 0))
    return Fleet(
        queue=queue.keys.queue,
        max_model_len=lengths,
        endpoints=frozenset(path for _, paths, _ in facts for path in paths),
        is_known=bool(facts) and all(models and paths for models, paths, _ in facts),
    )


async def _facts(queue: Queue, worker: str) -> tuple[list[str], list[str], int]:
    redis: Any = queue.redis
    fields = ["models", "endpoints", "max_model_len"]
    models, paths, length = await redis.hmget(queue.keys.worker(worker), fields)
    return _names(models), _names(paths), int(length) if length and length.isdigit() else 0


def _names(value: bytes | None) -> list[str]:
    return [name for name in (value or b"").decode(errors="replace").split(",") if name]
