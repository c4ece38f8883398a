"""Walk along `max_num_batched_tokens` from the best point: up while it gains, else down."""

from dataclasses import replace
from math import sqrt

from gristmill.bench.tune.candidates import Candidate, Setting
from gristmill.bench.tune.engine_walk import engine_points
from gristmill.bench.tune.measured_point import MeasuredPoint
from gristmill.bench.tune.search_record import GAIN, NEAR, SearchRecord, Walk

TOKENS_STEP = 4.0
"""Factor of one step of `max_num_batched_tokens`. Throughput changes slowly with it; noise would
hide a step of 2."""

SPARE_STEP = 4
"""Ratio of `max_num_batched_tokens` to the mean tokens of a step above which larger steps gain
nothing."""


def walk_tokens(record: SearchRecord, least_tokens: int, best: MeasuredPoint) -> Walk:
    """Return the best point along `max_num_batched_tokens`; at the end try half a step.

    Args:
        record: Points of the search.
        least_tokens: Smallest number with which an engine starts.
        best: Point to start from.
    """
    start = best.candidate.setting
    for step in (TOKENS_STEP, 1 / TOKENS_STEP):
        is_gain = True
        while is_gain:
            before = record.value(best)
            best = yield from _with_tokens(record, least_tokens, best, step)
            is_gain = record.value(best) >= GAIN * before
        if best.candidate.setting != start:
            break
    return (yield from _between(record, least_tokens, best))


def _between(record: SearchRecord, least_tokens: int, best: MeasuredPoint) -> Walk:
    """Try half a step of tokens towards the better neighbour."""
    at = best.candidate
    step = max(TOKENS_STEP, 1 / TOKENS_STEP, key=lambda step: _neighbour(record, at, step))
    if not _neighbour(record, at, step):
        return best
    return (yield from _with_tokens(record, least_tokens, best, sqrt(step)))


def _neighbour(record: SearchRecord, candidate: Candidate, step: float) -> float:
    at = candidate.on(candidate.setting.scaled(tokens=step))
    return max(map(record.value, record.like(at)), default=0.0)


def _with_tokens(record: SearchRecord, least_tokens: int, best: MeasuredPoint, step: float) -> Walk:
    """Try `step` times the tokens of the best point, and return the better point."""
    setting = best.candidate.setting
    at = setting.scaled(tokens=step)
    least = max(least_tokens, setting.max_num_seqs)
    if at.max_num_batched_tokens < least < setting.max_num_batched_tokens:
        at = replace(setting, max_num_batched_tokens=least)
    if reason := _no_such_tokens(record, least_tokens, best, at):
        record.prune(at, reason)
        return best
    # Larger steps may run more requests if full steps limited them, so try a full engine again.
    has_full_steps = any(point.has_full_steps for point in record.like(best.candidate))
    is_wider = step > 1 and record.goal.max_p95_s is None and has_full_steps
    in_flight = 0 if is_wider else best.candidate.in_flight
    full = best.candidate.on(at)
    point = yield from engine_points(record, full, NEAR * record.value(best), in_flight)
    return record.better(best, point)


def _no_such_tokens(
    record: SearchRecord, least_tokens: int, best: MeasuredPoint, setting: Setting
) -> str | None:
    tokens = setting.max_num_batched_tokens
    if tokens < least_tokens:
        return f"without chunked prefill a step holds a whole prompt, {least_tokens} tokens"
    if tokens < setting.max_num_seqs:
        return "a step needs at least one token for each sequence"
    known = best.candidate.setting.max_num_batched_tokens
    most = max(point.tokens_per_step for point in record.like(best.candidate))
    if tokens > known > SPARE_STEP * most > 0:
        return f"a step holds {most:.0f} tokens on average, far from its limit"
    return None
