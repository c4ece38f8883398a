"""Keep a number of requests in flight in an engine; repeat the sample without end.

Without gulps, the next request takes the place of each that ends. With gulps, free places wait
until they are many, as in a worker (`worker/gristmill/worker/admission/gulps.py`).
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from itertools import count, islice
from statistics import fmean

from ulid import ULID

from gristmill.bench.loads import LoadRequest
from gristmill.bench.tune.candidates import PLAIN, Candidate
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.request import Request
from gristmill.worker.admission.gulps import Gulps, gulp_share
from gristmill.worker.batch_policy import MAX_GULP_START
from gristmill.worker.engine import Engine

PAUSE_S = 0.05
"""Seconds of a place's pause after a refused request, and longest wait of a gulp for an end."""


def endless(load: Sequence[LoadRequest], model: str, skip: int = 0) -> Iterator[Request]:
    """Yield the requests of a load again and again.

    Args:
        load: The sample. Each pass has another salt, so that the prefix cache shares nothing
            between passes.
        model: Served name of the model.
        skip: Requests to leave out at first, so that engines side by side run different ones.
    """
    return islice(_passes(load, model), skip % len(load), None)


def _passes(load: Sequence[LoadRequest], model: str) -> Iterator[Request]:
    for _ in count():
        salt = str(ULID())
        for each in load:
            yield each.request(model, salt)


class SteadyLoad:
    """The requests in flight in one engine.

    Attributes:
        ended: Seconds in the engine and HTTP status of each request that has ended.
        gulps: Free places that began each gulp so far.
    """

    def __init__(
        self,
        engine: Engine,
        requests: Iterator[Request],
        candidate: Candidate,
        enough_refused: int,
    ) -> None:
        """Create a load without requests.

        Args:
            engine: Started engine.
            requests: Requests to run, without end.
            candidate: Says how many are in flight, and how places are refilled.
            enough_refused: Number of ended requests that shows a bad sample if all were refused.
        """
        self._engine, self._requests, self._candidate = engine, requests, candidate
        self._enough_refused = enough_refused
        self._first_error = ""
        self._changed = asyncio.Event()
        self._num_held = self._num_entered = 0
        self._num_good = self._num_tokens = 0
        self.ended: list[tuple[float, int]] = []
        self.gulps: list[int] = []

    def check(self) -> None:
        """Raise `InvalidRequest` if enough requests ended and the engine refused all of them."""
        is_enough = len(self.ended) >= self._enough_refused
        if is_enough and all(code >= 400 for _, code in self.ended):
            raise InvalidRequest(f"the engine refuses this sample: {self._first_error}")

    @property
    def mean_gulp(self) -> float:
        """Mean free places that began a gulp, without the first filling; 0 without gulps."""
        return fmean(self.gulps[1:]) if len(self.gulps) > 1 else 0.0

    async def run(self) -> None:
        """Run requests until this is cancelled."""
        async with asyncio.TaskGroup() as group:
            if self._candidate.refill != PLAIN:
                await self._gulps(group)
            for _ in range(self._candidate.in_flight):
                group.create_task(self._keep_place_busy())

    async def _keep_place_busy(self) -> None:
        for request in self._requests:
            await self._post(request)

    async def _gulps(self, group: asyncio.TaskGroup) -> None:
        gulps = Gulps()
        while True:
            num_free = self._candidate.in_flight - self._num_held
            size, entered = self._gulp_size(), self._num_entered
            num_new = gulps.num_to_fill(size, num_free, entered, time.monotonic())
            if num_new:
                self.gulps.append(num_new)
                self._start(group, num_new)
            else:
                await self._next_end()

    def _start(self, group: asyncio.TaskGroup, number: int) -> None:
        for start in range(0, number, MAX_GULP_START):
            num_together = min(MAX_GULP_START, number - start)
            if num_together > 1:
                self._engine.expect_group(num_together)
            for request in islice(self._requests, num_together):
                group.create_task(self._run(request))
        self._num_held += number
        self._num_entered += number

    async def _run(self, request: Request) -> None:
        try:
            await self._post(request)
        finally:
            self._num_held -= 1
            self._changed.set()

    async def _next_end(self) -> None:
        self._changed.clear()
        try:
            async with asyncio.timeout(PAUSE_S):
                await self._changed.wait()
        except TimeoutError:
            return  # the gulp may be due by its age

    def _gulp_size(self) -> int:
        if self._candidate.refill:
            return self._candidate.refill
        mean_tokens = self._num_tokens / self._num_good if self._num_good else 0.0
        return max(1, round(self._candidate.filled * gulp_share(mean_tokens)))

    async def _post(self, request: Request) -> None:
        posted_at = time.monotonic()
        response = await self._engine.post(request.endpoint, request.body)
        self._num_good += response.status < 400
        self._num_tokens += response.output_tokens
        self.ended.append((time.monotonic() - posted_at, response.status))
        if response.status >= 400:
            self._first_error = self._first_error or response.body[:300].decode(errors="replace")
            await asyncio.sleep(PAUSE_S)  # the engine may refuse all requests at once
