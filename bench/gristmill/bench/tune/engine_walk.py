"""Measure one engine setting with several numbers in flight, which needs no further start."""

from math import sqrt

from gristmill.bench.tune.candidates import Candidate
from gristmill.bench.tune.measured_point import MeasuredPoint
from gristmill.bench.tune.search_record import Asks, SearchRecord

WORSE = 0.93
"""Share of the best value below which a point is worse in spite of noise. The search tries fewer in
flight until a point falls below it, which needs no start. It then
starts an engine with the fewest sequences above it. A smaller engine may be faster than a larger one
with the same number in flight."""

IN_FLIGHT_STEP = 1.1
"""Precision, as a ratio, of the largest number in flight that keeps the bound."""

NEAR_STEP = 0.25
"""Largest step up from a number in flight that keeps the bound, as a share of it, if a similar
engine gave the first number."""


def engine_points(
    record: SearchRecord, full: Candidate, at_least: float = 0.0, in_flight: int = 0
) -> Asks:
    """Return the best point of one engine setting.

    Return None if it failed or no number in flight keeps the bound.

    Args:
        record: Points of the search.
        full: The engines, filled.
        at_least: Value below which a point ends the search on this setting.
        in_flight: Best number in flight on a similar engine; 0 fills the engine first and then
            tries fewer.
    """
    if record.goal.max_p95_s is not None:
        most = yield from _within_bound(record, full, in_flight)
        return (yield from fewer_in_flight(record, most, at_least))
    most = yield from record.ask(full.on(full.setting, in_flight))
    return most if in_flight else (yield from fewer_in_flight(record, most, at_least))


def fewer_in_flight(
    record: SearchRecord, most: MeasuredPoint | None, at_least: float = 0.0
) -> Asks:
    """Halve the filled sequences until a point is worse; return the best of these points."""
    best = most
    while best and most and record.value(most) >= max(at_least, WORSE * record.value(best)):
        best = max(best, most, key=record.value)
        fewer = most.candidate.filled // 2
        if not fewer:
            break
        most = yield from record.ask(most.candidate.filling(fewer))
    return best


def _within_bound(record: SearchRecord, full: Candidate, near: int) -> Asks:
    """Return the point with the most in flight that keeps the bound.

    The p95 grows with them, so bisect.
    """
    best: MeasuredPoint | None = None
    low, high, in_flight = 0, full.in_flight + 1, near or full.in_flight
    while high - low > 1 and (not low or high > IN_FLIGHT_STEP * low):
        point = yield from record.ask(full.on(full.setting, in_flight))
        if point is None:
            break
        if record.goal.allows(point):
            low, best = in_flight, point
        else:
            high = in_flight
        in_flight = round(sqrt(low * high)) if low else max(1, high // 2)
        if near and low:
            in_flight = min(in_flight, low + max(1, round(NEAR_STEP * low)))
    if high == 1:
        record.prune(full.setting, f"one alone takes longer than {record.goal.max_p95_s:g} s")
    return best
