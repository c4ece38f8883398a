"""Choose the next candidate to measure: a walk that skips hopeless settings, not a grid.

Pure: no engine, no clock.

`Search.asks` is a generator. It yields a `Candidate`, and the caller sends the `MeasuredPoint`
back, or None if there is no time for this candidate. The search then tries others, which may need
less time. The caller is `run_tune.py`, or a test with a computed surface.

An engine start is slow, but another number in flight on the same engine needs no start. An engine
of 256 sequences with 32 in flight runs much like an engine of 32 sequences. So the search measures
each engine with fewer in flight. These points show where more sequences cannot help, and which
smaller number is worth a start.

The best of many noisy points is partly luck. So at the end of a walk the search measures the best
point again, and those that other numbers of the same engines bring near to it. Then it repeats the
walk, which measures no known point again. It ends when the best point was measured twice.
"""

from gristmill.bench.tune.candidates import AUTO, MAX_DEFAULT_GRAPH, PLAIN, Candidate, Setting
from gristmill.bench.tune.card_walk import (
    walk_engines,
    walk_filling,
    walk_graphs,
    walk_gulp_size,
    walk_refill,
)
from gristmill.bench.tune.engine_walk import WORSE, engine_points
from gristmill.bench.tune.goal import Goal
from gristmill.bench.tune.measured_point import MeasuredPoint
from gristmill.bench.tune.search_record import Asks, Card, SearchRecord, Walk
from gristmill.bench.tune.sequences_walk import walk_sequences
from gristmill.bench.tune.tokens_walk import walk_tokens

ENOUGH_RUNS = 2
"""Measurements that the best point needs."""

MANY_ENGINES = 3
"""Engines that a card must hold for the search to try their number before that of the sequences.
Such a model is small, and one engine keeps the card busy a third of the time. Up to 512 sequences
still come first: they need no larger graphs, and one start instead of one for each engine."""


class Search:
    """One search from the engine's own setting.

    Attributes:
        start: First candidate: what a worker does with the user's flags.
        record: Points so far, and what was left out.
    """

    def __init__(
        self,
        start: Setting,
        goal: Goal,
        min_num_batched_tokens: int = 1,
        card: Card | None = None,
    ) -> None:
        """Create a search without points.

        Args:
            start: First setting: that of the user's flags and the engine's defaults.
            goal: Figure to maximize and its bound.
            min_num_batched_tokens: Smallest `max_num_batched_tokens` with which an engine starts;
                this is `max_model_len` without chunked prefill.
            card: Limits of the device; None for one engine without gulps.
        """
        self._card = card or Card()
        refill = AUTO if self._card.has_gulps else PLAIN
        self.start = Candidate(start, 1, refill=refill).full
        self._min_tokens = min_num_batched_tokens
        self.record = SearchRecord(goal)

    @property
    def points(self) -> list[MeasuredPoint]:
        """All measured points, in the order of their first measurement."""
        return self.record.points

    @property
    def pruned(self) -> dict[str, str]:
        """Settings that were not measured, each with the reason."""
        return self.record.pruned

    @property
    def best(self) -> MeasuredPoint | None:
        """The best measured point; None if no point may be chosen."""
        return self.record.best

    def near_best(self) -> list[Candidate]:
        """Return the candidates that noise alone may tell from the best, the best first."""
        if self.best is None:
            return []
        least = WORSE * self.record.value(self.best)
        near = [point for point in self.points if self.record.value(point) >= least]
        near.sort(key=lambda point: (point is not self.best, -self.record.value(point)))
        return [point.candidate for point in near]

    def asks(self) -> Asks:
        """Yield each candidate to measure, receive its point, and return the best point."""
        while True:
            yield from self._walk()
            best = self.best
            doubtful = self._doubtful(best) if best else None
            if doubtful is None or (yield from self.record.repeat(doubtful)) is None:
                return best

    def _doubtful(self, best: MeasuredPoint) -> MeasuredPoint | None:
        """Return the point to measure again: the best, or one that noise alone may tell from it.

        The latter have the same setting with other engines or another refill, so that they seldom
        need a start.
        """
        setting, least = best.candidate.setting, WORSE * self.record.value(best)
        rivals = [
            point
            for point in self.points
            if point.candidate.setting == setting
            and not point.candidate.is_like(best.candidate)
            and self.record.value(point) >= least
        ]
        return next((each for each in (best, *rivals) if each.runs < ENOUGH_RUNS), None)

    def _walk(self) -> Asks:
        """Walk along each dimension in turns, until none changes the best candidate."""
        best = yield from self._first()
        while best is not None and self.record.value(best):
            before = best
            best = yield from self._card_and_sequences(best)
            best = yield from walk_tokens(self.record, self._min_tokens, best)
            if best.candidate.setting == before.candidate.setting:
                return (yield from walk_gulp_size(self.record, self._card, best))
        return best

    def _card_and_sequences(self, best: MeasuredPoint) -> Walk:
        """Walk along what pays most first: engines for a small model, sequences for a large one."""
        record, card = self.record, self._card
        best = yield from walk_refill(record, card, best)
        if card.engines >= MANY_ENGINES:
            best = yield from walk_sequences(record, card, best, MAX_DEFAULT_GRAPH)
            best = yield from walk_engines(record, card, best)
            best = yield from walk_filling(record, best)
        best = yield from walk_graphs(record, card, best)
        best = yield from walk_sequences(record, card, best)
        best = yield from walk_engines(record, card, best)
        best = yield from walk_filling(record, best)
        return (yield from walk_refill(record, card, best))

    def _first(self) -> Asks:
        """Return the best point of the first engine.

        While an engine fails, halve its `max_num_seqs`.
        """
        first = self.start
        best = yield from engine_points(self.record, first)
        while best is None and first.setting.max_num_seqs > 1 and self.points[-1].failure:
            first = first.on(first.setting.with_sequences(first.setting.max_num_seqs // 2))
            best = yield from engine_points(self.record, first)
        return best
