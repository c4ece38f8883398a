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
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import fmean, quantiles

from gristmill.bench.loads import LoadRequest
from gristmill.bench.tune.candidates import Candidate
from gristmill.bench.tune.measured_point import MeasuredPoint
from gristmill.bench.tune.steady_load import SteadyLoad, endless
from gristmill.shared.errors import EngineDied, EngineError, InvalidRequest
from gristmill.shared.request import Request
from gristmill.worker.engine import Engine, EngineStats

LOOK_S = 0.05
"""Seconds between two readings of the engine's counters."""

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


async def measure_point(
    engine: Engine, model: str, load: Sequence[LoadRequest], candidate: Candidate, max_s: float
) -> MeasuredPoint:
    """Measure one point, and abort the load; see `measured_point`.

    Args:
        engine: Engine that was started with the candidate's setting.
        model: Served name of the model.
        load: The sample.
        candidate: Candidate to measure.
        max_s: Longest time in seconds.
    """
    requests, enough_refused = endless(load, model), min(len(load), MIN_REQUESTS)
    async with measured_point(engine, requests, candidate, max_s, enough_refused) as point:
        return point


@asynccontextmanager
async def measured_point(
    engine: Engine,
    requests: Iterator[Request],
    candidate: Candidate,
    max_s: float,
    enough_refused: int = MIN_REQUESTS,
) -> AsyncIterator[MeasuredPoint]:
    """Measure one point, and keep the load running for the length of a block.

    Other engines on the same device may still be measuring, and need this engine's load.

    Args:
        engine: Engine that was started with the candidate's setting.
        requests: Requests to run, without end.
        candidate: Candidate to measure; its number of engines does not count here.
        max_s: Longest time in seconds.
        enough_refused: Number of ended requests that shows a bad sample if all were refused.

    Raises:
        EngineDied: The engine died.
        InvalidRequest: The engine refused all of the first requests.
    """
    steady = SteadyLoad(engine, requests, candidate, enough_refused)
    try:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(steady.run())
            looks = await _window(engine, steady, candidate.in_flight, max_s)
            yield _point(candidate, steady, looks)
            running.cancel()
    except* EngineError as errors:
        raise EngineDied(_first(errors)) from errors
    except* InvalidRequest as errors:
        raise errors.exceptions[0] from None


def _first(errors: BaseExceptionGroup) -> str:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)


def _look(engine: Engine, steady: SteadyLoad) -> _Reading:
    return _Reading(time.monotonic(), len(steady.ended), engine.stats())


async def _window(
    engine: Engine, steady: SteadyLoad, in_flight: int, max_s: float
) -> list[_Reading]:
    """Return the readings of the window, once it is closed."""
    started_at = time.monotonic()
    ramp_s = MAX_RAMP_SHARE * max_s
    while len(steady.ended) < in_flight and _since(started_at) < ramp_s:  # noqa: ASYNC110  # or a time
        await asyncio.sleep(LOOK_S)
    steady.check()
    looks = [_look(engine, steady)]
    enough = len(steady.ended) + max(2 * in_flight, MIN_REQUESTS)
    while _since(started_at) < max_s:
        await asyncio.sleep(LOOK_S)
        looks.append(_look(engine, steady))
        if len(steady.ended) >= enough and looks[-1].at - looks[0].at >= MIN_WINDOW_S:
            break
    steady.check()
    return looks


def _point(candidate: Candidate, steady: SteadyLoad, looks: Sequence[_Reading]) -> MeasuredPoint:
    first, last = looks[0], looks[-1]
    ended = steady.ended[first.num_ended : last.num_ended]
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
        gulp_places=steady.mean_gulp,
    )


def _percentiles(durations_s: Sequence[float]) -> tuple[float | None, float | None]:
    if len(durations_s) < 2:
        return (durations_s[0], durations_s[0]) if durations_s else (None, None)
    cuts = quantiles(durations_s, n=20, method="inclusive")
    return cuts[9], cuts[18]


def _since(moment: float) -> float:
    return time.monotonic() - moment
