"""Choose the next candidate to measure: a walk that skips hopeless settings, not a grid.

Pure: no engine, no clock.

`Search.asks` is a generator. It yields a `Candidate`, and the caller sends the `MeasuredPoint`
back. The caller is `run_tune.py`, or a test with a computed surface. It stops when the time is up;
`Search.best` is then the result.

An engine start is slow, but another number in flight on the same engine needs no start. An engine
of 256 sequences with 32 in flight runs much like an engine of 32 sequences. So the search measures
each engine with fewer in flight. These points show where more sequences cannot help, and which
smaller number is worth a start.

The best of many noisy points is partly luck. So at the end of a walk the search measures the best
point again. Then it repeats the walk, which measures no known point again. It ends when the best
point was measured twice.
"""

from collections.abc import Generator
from math import sqrt

from gristmill.bench.tune.candidates import Candidate, Setting
from gristmill.bench.tune.goal import Goal
from gristmill.bench.tune.measured_point import MeasuredPoint

GAIN = 1.03
"""Ratio of two values below which a step counts as no gain: it is noise of short runs, or a
plateau."""

NEAR = 0.97
"""Share of the best value from which a point counts as equal. Below it the search leaves a
direction at once."""

WORSE = 0.93
"""Share of the best value below which a point is worse in spite of noise. The search tries fewer in
flight until a point falls below it, which needs no start. It starts an engine with the fewest
sequences above it, because a smaller engine may be faster than a larger one with as many in
flight."""

IN_FLIGHT_STEP = 1.1
"""Precision, as a ratio, of the largest number in flight that keeps the bound."""

ENOUGH_RUNS = 2
"""Measurements that the best point needs."""

NEAR_STEP = 0.25
"""Largest step up from a number in flight that keeps the bound, as a share of it, if a similar
engine gave the first number."""

MAX_NUM_SEQS = 16_384
"""Largest `max_num_seqs` that the search tries."""

TOKENS_STEP = 4.0
"""Factor of one step of `max_num_batched_tokens`. Throughput changes slowly with it; noise would
hide a step of 2."""

SPARE_STEP = 4
"""Ratio of `max_num_batched_tokens` to the mean tokens of a step above which larger steps gain
nothing."""

Asks = Generator[Candidate, MeasuredPoint, MeasuredPoint | None]
Walk = Generator[Candidate, MeasuredPoint, MeasuredPoint]
"""Part of a search that starts from a point, so it always returns a point."""


class Search:
    """One search from the engine's own setting.

    Attributes:
        pruned: Settings that were not measured, each with the reason.
    """

    def __init__(self, start: Setting, goal: Goal, min_num_batched_tokens: int = 1) -> None:
        """Create a search without points.

        Args:
            start: First setting: that of the user's flags and the engine's defaults.
            goal: Figure to maximize and its bound.
            min_num_batched_tokens: Smallest `max_num_batched_tokens` with which an engine starts;
                this is `max_model_len` without chunked prefill.
        """
        self._start, self._goal = start, goal
        self._min_tokens = min_num_batched_tokens
        self._measured: dict[Candidate, MeasuredPoint] = {}
        self.pruned: dict[str, str] = {}

    @property
    def points(self) -> list[MeasuredPoint]:
        """All measured points, in the order of their first measurement."""
        return list(self._measured.values())

    @property
    def best(self) -> MeasuredPoint | None:
        """The best measured point; None if no point may be chosen."""
        return self._goal.best(self.points)

    def asks(self) -> Asks:
        """Yield each candidate to measure, receive its point, and return the best point."""
        while True:
            yield from self._walk()
            best = self.best
            if best is None or best.runs >= ENOUGH_RUNS:
                return best
            self._measured[best.candidate] = best.merged((yield best.candidate))

    def _walk(self) -> Asks:
        """Walk along sequences and tokens in turns, until neither changes the best setting."""
        best = yield from self._first()
        while best is not None and self._value(best):
            before = best
            best = yield from self._sequences(best)
            best = yield from self._tokens(best)
            if best.candidate.setting == before.candidate.setting:
                break
        return best

    def _first(self) -> Asks:
        """Return the best point of the first engine.

        While an engine fails, halve its `max_num_seqs`.
        """
        setting = self._start
        best = yield from self._engine(setting)
        while best is None and setting.max_num_seqs > 1 and self.points[-1].failure:
            setting = setting.with_sequences(setting.max_num_seqs // 2)
            best = yield from self._engine(setting)
        return best

    def _ask(self, candidate: Candidate) -> Asks:
        """Return the point of a candidate, measured at most once; None if it failed."""
        if candidate not in self._measured:
            self._measured[candidate] = yield candidate
        point = self._measured[candidate]
        return None if point.failure else point

    def _engine(self, setting: Setting, at_least: float = 0.0, in_flight: int = 0) -> Asks:
        """Return the best point of one engine.

        Return None if it failed or no number in flight keeps the bound.

        Args:
            setting: Setting of the engine.
            at_least: Value below which a point ends the search on this engine.
            in_flight: Best number in flight on a similar engine; 0 fills the engine first and then
                tries fewer.
        """
        if self._goal.max_p95_s is not None:
            most = yield from self._within_bound(setting, in_flight)
            return (yield from self._fewer(most, at_least))
        most = yield from self._ask(Candidate(setting, in_flight or setting.full))
        return most if in_flight else (yield from self._fewer(most, at_least))

    def _fewer(self, most: MeasuredPoint | None, at_least: float) -> Asks:
        """Halve the filled sequences until a point is worse; return the best of these points."""
        best = most
        while best and most and self._value(most) >= max(at_least, WORSE * self._value(best)):
            best = max(best, most, key=self._value)
            setting, fewer = most.candidate.setting, most.candidate.filled // 2
            if not fewer:
                break
            in_flight = setting.with_sequences(fewer).full
            most = yield from self._ask(Candidate(setting, in_flight))
        return best

    def _within_bound(self, setting: Setting, near: int) -> Asks:
        """Return the point with the most in flight that keeps the bound.

        The p95 grows with them, so bisect.
        """
        best: MeasuredPoint | None = None
        low, high, in_flight = 0, setting.full + 1, near or setting.full
        while high - low > 1 and (not low or high > IN_FLIGHT_STEP * low):
            point = yield from self._ask(Candidate(setting, in_flight))
            if point is None:
                break
            if self._goal.allows(point):
                low, best = in_flight, point
            else:
                high = in_flight
            in_flight = round(sqrt(low * high)) if low else max(1, high // 2)
            if near and low:
                in_flight = min(in_flight, low + max(1, round(NEAR_STEP * low)))
        if high == 1:
            self._prune(setting, f"one alone takes longer than {self._goal.max_p95_s:g} s")
        return best

    def _sequences(self, best: MeasuredPoint) -> Walk:
        """Walk along `max_num_seqs`: up while it gains, or down to the fewest as fast."""
        setting = best.candidate.setting
        reason = self._no_more_sequences(best)
        if reason is None:
            return (yield from self._climb(best))
        self._prune(_scaled(setting, sequences=2), reason)
        fewer = self._enough(best, WORSE)
        if self._goal.max_p95_s is not None or fewer >= setting.max_num_seqs:
            return best
        less = setting.with_sequences(fewer)
        return self._better(best, (yield from self._engine(less, NEAR * self._value(best))))

    def _enough(self, best: MeasuredPoint, share: float) -> int:
        """Return the fewest filled sequences that reached this share of the engine's best value."""
        least, on_it = share * self._value(best), self._points_of(best.candidate.setting)
        return min(each.candidate.filled for each in on_it if self._value(each) >= least)

    def _points_of(self, setting: Setting) -> list[MeasuredPoint]:
        return [point for point in self.points if point.candidate.setting == setting]

    def _climb(self, best: MeasuredPoint) -> Walk:
        at, is_flat = best.candidate.setting, False
        while True:
            at = _scaled(at, sequences=2)
            if at.max_num_seqs > MAX_NUM_SEQS:
                return best
            value = self._value(best)
            point = yield from self._engine(at, at_least=NEAR * value)
            gain = self._value(point) / value
            best = self._better(best, point)
            if point is None or gain < NEAR or (is_flat and gain < GAIN):
                return best
            reason = self._no_more_sequences(point)
            if reason is not None:
                self._prune(_scaled(at, sequences=2), reason)
                return best
            is_flat = gain < GAIN

    def _no_more_sequences(self, best: MeasuredPoint) -> str | None:
        """Return why a larger `max_num_seqs` than this engine's cannot help; None if it may."""
        setting, in_flight = best.candidate.setting, best.candidate.in_flight
        if self._goal.max_p95_s is not None and in_flight <= setting.max_num_seqs:
            return f"{in_flight} in flight do best within the bound"
        full = self._measured.get(Candidate(setting, setting.full))
        if full and not full.is_settled:
            return f"{setting.full} in flight did not settle in the time for a point"
        enough = self._enough(best, NEAR)
        if enough <= setting.max_num_seqs // 2:
            return f"{enough} sequences are enough"
        if best.has_full_cache:
            return f"the KV cache is full with {best.running:.0f} running"
        return None

    def _tokens(self, best: MeasuredPoint) -> Walk:
        """Walk along `max_num_batched_tokens` from the best: up while it gains, else down.

        Then try half a step.
        """
        start = best.candidate.setting
        for step in (TOKENS_STEP, 1 / TOKENS_STEP):
            is_gain = True
            while is_gain:
                before = self._value(best)
                best = yield from self._with_tokens(best, step)
                is_gain = self._value(best) >= GAIN * before
            if best.candidate.setting != start:
                break
        return (yield from self._between(best))

    def _between(self, best: MeasuredPoint) -> Walk:
        """Try half a step of tokens towards the better neighbour."""
        step = max(TOKENS_STEP, 1 / TOKENS_STEP, key=lambda step: self._neighbour(best, step))
        if not self._neighbour(best, step):
            return best
        return (yield from self._with_tokens(best, sqrt(step)))

    def _neighbour(self, best: MeasuredPoint, step: float) -> float:
        setting = _scaled(best.candidate.setting, tokens=step)
        return max(map(self._value, self._points_of(setting)), default=0.0)

    def _with_tokens(self, best: MeasuredPoint, step: float) -> Walk:
        """Try `step` times the tokens of the best point, and return the better point."""
        setting = best.candidate.setting
        at = _scaled(setting, tokens=step)
        least = max(self._min_tokens, setting.max_num_seqs)
        if at.max_num_batched_tokens < least < setting.max_num_batched_tokens:
            at = Setting(setting.max_num_seqs, least)
        if reason := self._no_such_tokens(best, at):
            self._prune(at, reason)
            return best
        # Larger steps may run more requests if full steps limited them, so try a full engine again.
        is_wider = step > 1 and self._goal.max_p95_s is None and self._has_full_steps(setting)
        in_flight = 0 if is_wider else best.candidate.in_flight
        point = yield from self._engine(at, NEAR * self._value(best), in_flight)
        return self._better(best, point)

    def _has_full_steps(self, setting: Setting) -> bool:
        return any(point.has_full_steps for point in self._points_of(setting))

    def _no_such_tokens(self, best: MeasuredPoint, setting: Setting) -> str | None:
        tokens = setting.max_num_batched_tokens
        if tokens < self._min_tokens:
            return f"without chunked prefill a step holds a whole prompt, {self._min_tokens} tokens"
        if tokens < setting.max_num_seqs:
            return "a step needs at least one token for each sequence"
        known = best.candidate.setting
        most = max(point.tokens_per_step for point in self._points_of(known))
        if tokens > known.max_num_batched_tokens > SPARE_STEP * most > 0:
            return f"a step holds {most:.0f} tokens on average, far from its limit"
        return None

    def _prune(self, setting: Setting, reason: str) -> None:
        self.pruned.setdefault(str(setting), reason)

    def _better(self, best: MeasuredPoint, point: MeasuredPoint | None) -> MeasuredPoint:
        return point if point and self._value(point) > self._value(best) else best

    def _value(self, point: MeasuredPoint | None) -> float:
        return self._goal.value(point) if point else 0.0


def _scaled(setting: Setting, sequences: float = 1, tokens: float = 1) -> Setting:
    """Return a setting scaled by these factors.

    More sequences may raise the tokens too: vLLM refuses fewer tokens per step than sequences.
    """
    max_num_seqs = max(1, int(setting.max_num_seqs * sequences))
    max_num_batched_tokens = int(setting.max_num_batched_tokens * tokens)
    if sequences > 1:
        max_num_batched_tokens = max(max_num_batched_tokens, max_num_seqs)
    return Setting(max_num_seqs, max_num_batched_tokens)
