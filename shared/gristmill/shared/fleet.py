"""What the live workers of a queue serve, and whether a request is any of theirs.

Producers look before they submit: a name that nobody serves would otherwise be found out by a worker, long
afterwards. A queue without workers takes everything, since they may come later.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gristmill.shared.connection import retrying
from gristmill.shared.errors import NotServed
from gristmill.shared.queue import Queue
from gristmill.shared.records import Request

FRESH_S = 5.0
"""How long one look is good for, before the next request asks for another."""

NUM_NAMED = 10
"""Models that an error names; of the others it says how many."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """What one look found.

    Attributes:
        queue: Name of the queue.
        max_model_len: Each model served, adapters included -> prompt and output tokens; 0 where no worker says.
        endpoints: Paths that some worker answers.
        is_known: Whether every worker says what it serves; if not, none is told what it does not.
    """

    queue: str
    max_model_len: Mapping[str, int]
    endpoints: frozenset[str]
    is_known: bool

    def check(self, request: Request) -> None:
        """Make sure that some worker serves what a request asks for, or that there is none yet.

        Raises:
            NotServed: There are workers, and none does.
        """
        if refusal := self.refusal(request):
            raise refusal

    def refusal(self, request: Request) -> NotServed | None:
        """Return why a request would find no worker, or None if it may."""
        if not self.is_known:
            return None
        if request.model and request.model not in self.max_model_len:
            what = f"model {request.model[:200]!r}"
            words = self._words(request, what, sorted(self.max_model_len))
            return NotServed(words, "model_not_found")
        if request.endpoint not in self.endpoints:
            words = self._words(request, request.endpoint, sorted(self.endpoints))
            return NotServed(words, "endpoint_not_served")
        return None

    def _words(self, request: Request, what: str, served: list[str]) -> str:
        more = f" and {len(served) - NUM_NAMED} more" if len(served) > NUM_NAMED else ""
        return (
            f"request {request.id}: no worker of queue {self.queue} serves {what}; they serve"
            f" {', '.join(served[:NUM_NAMED])}{more}. Ask for one of these, or set"
            " GRISTMILL_CHECK_MODELS=false to submit for workers that come later"
        )


class Lookout:
    """Looks at the fleet of one queue, no more often than it has to.

    Args:
        queue: Which queue.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._looking = asyncio.Lock()
        self._fleet: Fleet | None = None
        self._looked_at = 0.0

    async def fleet(self) -> Fleet:
        """Return what was seen in the last few seconds."""
        async with self._looking:
            if self._fleet is None or time.monotonic() - self._looked_at > FRESH_S:
                self._fleet = await retrying(lambda: look(self._queue))
                self._looked_at = time.monotonic()
            return self._fleet

    async def check(self, requests: Sequence[Request]) -> None:
        """Make sure that each request is some worker's, or known to the queue already.

        Before it refuses it looks anew.

        Raises:
            NotServed: One is nobody's.
        """
        if not any(map((await self.fleet()).refusal, requests)):
            return
        self._fleet = None
        refusals = list(map((await self.fleet()).refusal, requests))
        ids = [request.id for request in requests]
        states = await retrying(lambda: self._queue.status(ids))
        for refusal, (state, _) in zip(refusals, states, strict=True):
            if refusal and state == "unknown":  # what was submitted before is only asked after
                raise refusal


async def look(queue: Queue) -> Fleet:
    """Ask what the workers of a queue serve."""
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
