"""Walk along `max_num_seqs`: up while it gains, or down to the fewest that are as fast."""

from dataclasses import replace

from gristmill.bench.tune.candidates import MAX_DEFAULT_GRAPH, Setting
from gristmill.bench.tune.engine_walk import WORSE, engine_points, fewer_in_flight
from gristmill.bench.tune.measured_point import MeasuredPoint
from gristmill.bench.tune.search_record import GAIN, NEAR, Card, SearchRecord, Walk

MAX_NUM_SEQS = 16_384
"""Largest `max_num_seqs` that the search tries."""


def with_graphs(setting: Setting, card: Card) -> Setting:
    """Return a setting whose graphs hold all of its sequences, where the search may set that."""
    if not card.has_capture or setting.max_num_seqs <= MAX_DEFAULT_GRAPH:
        return setting
    return replace(setting, graph_size=setting.max_num_seqs)


def walk_sequences(
    record: SearchRecord, card: Card, best: MeasuredPoint, most: int = MAX_NUM_SEQS
) -> Walk:
    """Return the best point along `max_num_seqs`.

    Args:
        record: Points of the search.
        card: What the device allows.
        best: Point to start from.
        most: Largest `max_num_seqs` to try. From there on the walk leaves the sequences alone.
    """
    if best.candidate.setting.max_num_seqs >= most:
        return best
    if best.candidate.engines > 1:  # these engines were only measured full
        best = (yield from fewer_in_flight(record, best)) or best
    setting = best.candidate.setting
    reason = _no_more_sequences(record, best)
    if reason is None:
        return (yield from _climb(record, card, best, most))
    record.prune(with_graphs(setting.scaled(sequences=2), card), reason)
    fewer = record.enough(best, WORSE)
    is_small = record.goal.max_p95_s is not None or fewer >= setting.max_num_seqs
    if is_small or best.candidate.engines > 1:
        return best
    less = best.candidate.on(setting.with_sequences(fewer))
    point = yield from engine_points(record, less, NEAR * record.value(best))
    return record.better(best, point)


def _climb(record: SearchRecord, card: Card, best: MeasuredPoint, most: int) -> Walk:
    at, is_flat = best.candidate.setting, False
    while True:
        at = with_graphs(at.scaled(sequences=2), card)
        if at.max_num_seqs > most:
            return best
        value = record.value(best)
        point = yield from engine_points(record, best.candidate.on(at), at_least=NEAR * value)
        gain = record.value(point) / value
        best = record.better(best, point)
        if point is None or gain < NEAR or (is_flat and gain < GAIN):
            return best
        reason = _no_more_sequences(record, point)
        if reason is not None:
            record.prune(with_graphs(at.scaled(sequences=2), card), reason)
            return best
        is_flat = gain < GAIN


def _no_more_sequences(record: SearchRecord, best: MeasuredPoint) -> str | None:
    """Return why a larger `max_num_seqs` than this engine's cannot help; None if it may."""
    candidate = best.candidate
    if record.goal.max_p95_s is not None and candidate.in_flight <= candidate.setting.max_num_seqs:
        return f"{candidate.in_flight} in flight do best within the bound"
    full = record.point(candidate.full)
    if full and not full.is_settled:
        return f"{full.candidate.in_flight} in flight did not settle in the time for a point"
    enough = record.enough(best, NEAR)
    if enough <= candidate.setting.max_num_seqs // 2:
        return f"{enough} sequences are enough"
    if best.has_full_cache:
        return f"the KV cache is full with {best.running:.0f} running"
    return None
