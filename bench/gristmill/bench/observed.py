"""An engine that notes when each request of a run reached it and left it.

It stands between the worker and the true engine, so the time before it is the queue's and the worker's,
and the time behind it the engine's.
"""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gristmill.worker.engine import Engine, EngineInfo, EngineStats, Response


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as the engine saw it; monotonic seconds."""

    arrived_at: float
    ended_at: float
    response: Response


class Observed:
    """Passes everything on to an engine; see `Engine` for the contract.

    Attributes:
        seen: What was seen of each expected request; None for what has not ended.
        num_ended: How many have ended.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._places: dict[bytes, deque[int]] = {}
        self.seen: list[Seen | None] = []
        self.num_ended = 0

    def expect(self, bodies: Sequence[bytes]) -> None:
        """Begin a run: forget the last one and note what comes with these bodies.

        Requests with the same body are told apart by their order, which is all that they differ in.
        """
        self.seen, self.num_ended = [None] * len(bodies), 0
        self._places = {}
        for place, body in enumerate(bodies):
            self._places.setdefault(body, deque()).append(place)

    async def start(self) -> EngineInfo:
        """See `Engine.start`."""
        return await self._engine.start()

    async def post(self, endpoint: str, body: bytes, *, priority: int = 0) -> Response:
        """Answer one request and note it; see `Engine.post`."""
        places = self._places[body]
        place = places[0]
        places.rotate(-1)  # not popped: a request that was given back comes again
        arrived_at = time.monotonic()
        response = await self._engine.post(endpoint, body, priority=priority)
        self.num_ended += self.seen[place] is None
        self.seen[place] = Seen(arrived_at, time.monotonic(), response)
        return response

    async def check(self, timeout_s: float) -> None:
        """See `Engine.check`."""
        await self._engine.check(timeout_s)

    def evidence(self) -> Mapping[str, Any]:
        """See `Engine.evidence`."""
        return self._engine.evidence()

    def stats(self) -> EngineStats:
        """See `Engine.stats`."""
        return self._engine.stats()

    async def close(self) -> None:
        """See `Engine.close`."""
        await self._engine.close()
