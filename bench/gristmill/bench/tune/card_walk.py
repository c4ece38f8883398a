"""Walk along what only a card has: gulps, captured graphs, and several engines."""

from dataclasses import replace

from gristmill.bench.tune.candidates import AUTO, PLAIN
from gristmill.bench.tune.measured_point import MeasuredPoint
from gristmill.bench.tune.search_record import GAIN, NEAR, Card, SearchRecord, Walk
from gristmill.bench.tune.sequences_walk import with_graphs


def walk_refill(record: SearchRecord, card: Card, best: MeasuredPoint) -> Walk:
    """Return the better of gulps and plain refilling; this needs no start."""
    if not card.has_gulps:
        return best
    other = PLAIN if best.candidate.refill == AUTO else AUTO
    return record.better(best, (yield from record.ask(best.candidate.refilled(other))))


def walk_gulp_size(record: SearchRecord, card: Card, best: MeasuredPoint) -> Walk:
    """Return the best of half and twice the worker's own gulp, which must gain more than noise."""
    if not card.has_gulps or best.candidate.refill != AUTO or not best.gulp_places:
        return best
    for factor in (2.0, 0.5):
        size = max(2, round(factor * best.gulp_places))
        point = yield from record.ask(best.candidate.refilled(size))
        if record.value(point) >= GAIN * record.value(best):
            return record.better(best, point)
    return best


def walk_graphs(record: SearchRecord, card: Card, best: MeasuredPoint) -> Walk:
    """Capture graphs for all sequences where the engine has more than vLLM captures."""
    captured = with_graphs(best.candidate.setting, card)
    if captured == best.candidate.setting:
        return best
    in_flight = best.candidate.in_flight
    full = yield from record.ask(best.candidate.on(captured))
    best = record.better(best, full)
    if full is None or in_flight == full.candidate.in_flight:
        return best
    return record.better(best, (yield from record.ask(full.candidate.on(captured, in_flight))))


def walk_engines(record: SearchRecord, card: Card, best: MeasuredPoint) -> Walk:
    """Add one engine after the other until two in a row gain nothing, or one loses."""
    at, is_flat = best.candidate, False
    while at.engines < card.engines:
        at = replace(at, engines=at.engines + 1)
        value = record.value(best)
        point = yield from record.ask(at)
        gain = record.value(point) / value
        best = record.better(best, point)
        if point is None or gain < NEAR or (is_flat and gain < GAIN):
            return best
        is_flat = gain < GAIN
    return best


def walk_filling(record: SearchRecord, best: MeasuredPoint) -> Walk:
    """Fill several engines again; this needs no start.

    One engine may be as fast with fewer in flight, because its thread is the limit. Several share
    the card, and then the card is the limit.
    """
    full = best.candidate.full
    if best.candidate.engines == 1 or best.candidate.in_flight >= full.in_flight:
        return best
    return record.better(best, (yield from record.ask(full)))
