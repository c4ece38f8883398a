"""An engine that records when each request of a run reaches and leaves it.

It stands between the worker and the true engine. It separates the time in queue and worker from the
time in the engine.
"""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gristmill.worker.engine import Engine, EngineInfo, EngineStats, OnEvent, Response


@dataclass(frozen=True, slots=True)
class PostedRequest:
    """One request as the engine saw it; moments in monotonic seconds."""

    arrived_at: float
    ended_at: float
    response: Response


class RecordingEngine:
    """Passes every call on to an engine; see `Engine` for the contract.

    Attributes:
        posted: The record of each expected request; None before its end.
        num_ended: Number of requests that have ended.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._places: dict[bytes, deque[int]] = {}
        self.posted: list[PostedRequest | None] = []
        self.num_ended = 0

    def expect(self, bodies: Sequence[bytes]) -> None:
        """Begin a run: forget the last one and record the requests with these bodies.

        Several requests may have the same body. They are recorded in the order in which they
        arrive.
        """
        self.posted, self.num_ended = [None] * len(bodies), 0
        self._places = {}
        for place, body in enumerate(bodies):
            self._places.setdefault(body, deque()).append(place)

    async def start(self) -> EngineInfo:
        """See `Engine.start`."""
        return await self._engine.start()

    async def post(
        self, endpoint: str, body: bytes, *, priority: int = 0, on_event: OnEvent | None = None
    ) -> Response:
        """Answer one request and record it; see `Engine.post`."""
        places = self._places[body]
        place = places[0]
        places.rotate(-1)  # not popped: a request that the worker gave back arrives again
        arrived_at = time.monotonic()
        response = await self._engine.post(endpoint, body, priority=priority, on_event=on_event)
        self.num_ended += self.posted[place] is None
        self.posted[place] = PostedRequest(arrived_at, time.monotonic(), response)
        return response

    async def check(self, timeout_s: float) -> None:
        """See `Engine.check`."""
        await self._engine.check(timeout_s)

    def evidence(self) -> Mapping[str, Any]:
        """See `Engine.evidence`."""
        return self._engine.evidence()

    def expect_group(self, number: int) -> None:
        """Announce a group to the engine."""
        self._engine.expect_group(number)

    def stats(self) -> EngineStats:
        """See `Engine.stats`."""
        return self._engine.stats()

    async def close(self) -> None:
        """See `Engine.close`."""
        await self._engine.close()
