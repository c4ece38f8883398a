"""Measure one point: a closed loop with a fixed number of requests in flight on a started engine.

A fixed set of requests would mostly measure its ramp-up and its tail. So the loop repeats the
sample without end, and only a window counts in which the engine is full. The window opens when as
many requests have ended as are in flight. It closes when twice as many more have ended, and at
least `MIN_REQUESTS` in `MIN_WINDOW_S`. It opens and closes earlier if the point's time runs out.
The engine counts tokens at every step, so the window may close in the middle of a request. The loop
then aborts the requests in flight.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from statistics import fmean, quantiles

from ulid import ULID

from gristmill.bench.loads import LoadRequest
from gristmill.bench.tune.candidates import Candidate
from gristmill.bench.tune.measured_point import MeasuredPoint
from gristmill.shared.errors import EngineDied, EngineError, InvalidRequest
from gristmill.shared.request import Request
from gristmill.worker.engine import Engine, EngineStats

LOOK_S = 0.05
"""Seconds between two readings of the engine's counters, and pause after a refused request."""

MIN_WINDOW_S = 3.0
MIN_REQUESTS = 64
"""Smallest window that gives a meaningful p95: seconds, and requests that ended."""

MAX_RAMP_SHARE = 0.6
"""Share of a point's time after which the window opens, even if few requests have ended."""


@dataclass(slots=True)
class _Reading:
    """The engine's counters at one moment."""

    at: float
    num_ended: int
    stats: EngineStats


@dataclass(slots=True)
class _ClosedLoop:
    """The requests in flight. When one ends, the next takes its place."""

    engine: Engine
    requests: Iterator[Request]
    enough_refused: int
    ended: list[tuple[float, int]] = field(default_factory=list)
    first_error: str = ""

    async def keep_busy(self) -> None:
        for request in self.requests:
            posted_at = time.monotonic()
            response = await self.engine.post(request.endpoint, request.body)
            self.ended.append((time.monotonic() - posted_at, response.status))
            if response.status >= 400:
                self.first_error = self.first_error or response.body[:300].decode(errors="replace")
                await asyncio.sleep(LOOK_S)  # the engine may refuse all requests at once

    def check(self) -> None:
        """Raise `InvalidRequest` if `enough_refused` requests ended and the engine refused all."""
        if len(self.ended) >= self.enough_refused and all(code >= 400 for _, code in self.ended):
            raise InvalidRequest(f"the engine refuses this sample: {self.first_error}")

    def look(self) -> _Reading:
        return _Reading(time.monotonic(), len(self.ended), self.engine.stats())


async def measure_point(
    engine: Engine, model: str, load: Sequence[LoadRequest], candidate: Candidate, max_s: float
) -> MeasuredPoint:
    """Measure one point.

    Args:
        engine: Engine that was started with the candidate's setting.
        model: Served name of the model.
        load: The sample. Each pass has another salt, so that the prefix cache shares nothing
            between passes.
        candidate: Candidate to measure.
        max_s: Longest time in seconds.

    Raises:
        EngineDied: The engine died.
        InvalidRequest: The engine refused all of the first requests.
    """
    loop = _ClosedLoop(engine, _endless(load, model), enough_refused=min(len(load), MIN_REQUESTS))
    try:
        async with asyncio.TaskGroup() as group:
            places = [group.create_task(loop.keep_busy()) for _ in range(candidate.in_flight)]
            looks = await _window(loop, candidate.in_flight, max_s)
            for place in places:
                place.cancel()
    except* EngineError as errors:
        raise EngineDied(str(errors.exceptions[0])) from errors
    except* InvalidRequest as errors:
        raise errors.exceptions[0] from None
    return _point(candidate, loop, looks)


def _endless(load: Sequence[LoadRequest], model: str) -> Iterator[Request]:
    for _ in count():
        salt = str(ULID())
        for each in load:
            yield each.request(model, salt)


async def _window(loop: _ClosedLoop, in_flight: int, max_s: float) -> list[_Reading]:
    """Return the readings of the window, once it is closed."""
    started_at = time.monotonic()
    ramp_s = MAX_RAMP_SHARE * max_s
    while len(loop.ended) < in_flight and _since(started_at) < ramp_s:  # noqa: ASYNC110  # or a time
        await asyncio.sleep(LOOK_S)
    loop.check()
    looks = [loop.look()]
    enough = len(loop.ended) + max(2 * in_flight, MIN_REQUESTS)
    while _since(started_at) < max_s:
        await asyncio.sleep(LOOK_S)
        looks.append(loop.look())
        if len(loop.ended) >= enough and looks[-1].at - looks[0].at >= MIN_WINDOW_S:
            break
    loop.check()
    return looks


def _point(candidate: Candidate, loop: _ClosedLoop, looks: Sequence[_Reading]) -> MeasuredPoint:
    first, last = looks[0], looks[-1]
    ended = loop.ended[first.num_ended : last.num_ended]
    seconds = last.at - first.at
    output_tokens = last.stats.output_tokens - first.stats.output_tokens
    prompt_tokens = last.stats.prompt_tokens - first.stats.prompt_tokens
    steps = last.stats.steps - first.stats.steps
    good_s = [duration_s for duration_s, status in ended if status < 400]
    p50_s, p95_s = _percentiles(good_s)
    return MeasuredPoint(
        candidate,
        output_tokens_per_s=output_tokens / seconds,
        prompt_tokens_per_s=prompt_tokens / seconds,
        requests_per_s=len(good_s) / seconds,
        p50_s=p50_s,
        p95_s=p95_s,
        running=fmean(look.stats.running for look in looks),
        kv_cache_peak=max(look.stats.kv_cache_usage for look in looks),
        preemptions=last.stats.preemptions - first.stats.preemptions,
        tokens_per_step=(output_tokens + prompt_tokens) / max(1, steps),
        num_requests=len(ended),
        num_failed=len(ended) - len(good_s),
        seconds=seconds,
        is_settled=2 * first.num_ended >= candidate.in_flight,
    )


def _percentiles(durations_s: Sequence[float]) -> tuple[float | None, float | None]:
    if len(durations_s) < 2:
        return (durations_s[0], durations_s[0]) if durations_s else (None, None)
    cuts = quantiles(durations_s, n=20, method="inclusive")
    return cuts[9], cuts[18]


def _since(moment: float) -> float:
    return time.monotonic() - moment
