"""One point: a closed loop of so many requests in flight on a started engine.

A fixed set of requests would be measured with its ramp-up and its tail, and at large in-flight limits
little else; so requests come on and on, in the sample's order, and what counts is a window in which the
engine is full: it opens when as many have ended as are in flight (each place was taken anew, on average)
and closes after twice as many. Tokens are counted by the engine, step by step, so a window need not end
with a request; what is still in flight then is aborted.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from statistics import fmean, quantiles

from ulid import ULID

from gristmill.bench.loads import LoadRequest
from gristmill.bench.tune.points import Candidate, Point
from gristmill.shared.errors import EngineDied, EngineError, InvalidRequest
from gristmill.shared.request import Request
from gristmill.worker.engine import Engine, EngineStats

LOOK_S = 0.05
MIN_WINDOW_S = 3.0
MIN_REQUESTS = 64
"""A window is no shorter; a p95 of fewer is the longest of them."""

MAX_RAMP_SHARE = 0.6
"""Of the time for a point, if requests are long; then the window opens all the same."""


@dataclass(slots=True)
class _Look:
    """What one look at the engine saw."""

    at: float
    num_ended: int
    stats: EngineStats


@dataclass(slots=True)
class _Loop:
    """The requests in flight, each place of which takes the next one when its request ends."""

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
                await asyncio.sleep(LOOK_S)  # it may take no time, and be followed by the like

    def check(self) -> None:
        """Raise `InvalidRequest` if all was refused so far, and enough to tell the sample from a line of it."""
        if len(self.ended) >= self.enough_refused and all(code >= 400 for _, code in self.ended):
            raise InvalidRequest(f"the engine refuses this sample: {self.first_error}")

    def look(self) -> _Look:
        return _Look(time.monotonic(), len(self.ended), self.engine.stats())


async def measure(
    engine: Engine, model: str, load: Sequence[LoadRequest], candidate: Candidate, max_s: float
) -> Point:
    """Measure one point.

    Args:
        engine: Started with the candidate's setting.
        model: The served name.
        load: The sample; it is run again and again, each time of different salt, so that the prefix
            cache holds what the requests of one pass share and nothing of the pass before.
        candidate: What is measured.
        max_s: How long it may take.

    Raises:
        EngineDied: The engine is gone.
        InvalidRequest: It refuses every request of the sample.
    """
    loop = _Loop(engine, _endless(load, model), enough_refused=min(len(load), MIN_REQUESTS))
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


async def _window(loop: _Loop, in_flight: int, max_s: float) -> list[_Look]:
    """Return the looks of the window, once it is closed."""
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


def _point(candidate: Candidate, loop: _Loop, looks: Sequence[_Look]) -> Point:
    first, last = looks[0], looks[-1]
    ended = loop.ended[first.num_ended : last.num_ended]
    seconds = last.at - first.at
    output_tokens = last.stats.output_tokens - first.stats.output_tokens
    prompt_tokens = last.stats.prompt_tokens - first.stats.prompt_tokens
    steps = last.stats.steps - first.stats.steps
    good_s = [duration_s for duration_s, status in ended if status < 400]
    p50_s, p95_s = _percentiles(good_s)
    return Point(
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
