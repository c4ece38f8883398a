"""A computed card with a clock of its own, for tests of `gristmill tune`: engines take a minute to start."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import log2

from gristmill.bench.tune.budget import Budget
from gristmill.bench.tune.candidates import AUTO, MAX_DEFAULT_GRAPH, PLAIN, Candidate, Setting
from gristmill.bench.tune.comparison import Comparison
from gristmill.bench.tune.goal import Goal
from gristmill.bench.tune.measured_point import MeasuredPoint
from gristmill.bench.tune.run_tune import compared, run_search
from gristmill.bench.tune.search import Search
from gristmill.bench.tune.search_record import Card
from gristmill.bench.tune.slots import Slots
from gristmill.bench.tune.time_plan import TimePlan

OUTPUT_TOKENS = 124
"""Mean output of the computed load; its gulps are an eighth of the sequences."""

Speed = Callable[[Candidate], float]
"""Tokens per second of a candidate."""


def interpolated(table: dict[int, float], at: float) -> float:
    """Return a value of a table, with straight lines between its knots over the logarithm."""
    knots = sorted(table)
    at = min(max(at, knots[0]), knots[-1])
    high = next(knot for knot in knots if knot >= at)
    low = max((knot for knot in knots if knot < high), default=high)
    share = log2(at / low) / log2(high / low) if high > low else 0.0
    return table[low] + share * (table[high] - table[low])


def has_slow_steps(candidate: Candidate) -> bool:
    """Return whether steps are larger than the captured graphs."""
    captured = max(MAX_DEFAULT_GRAPH, candidate.setting.graph_size)
    return candidate.filled > captured


def small_model(candidate: Candidate) -> float:
    """1B on an H200: EngineCore's thread is the limit, so engines pay, and gulps for one."""
    engines = {1: 1.0, 2: 2.18, 3: 2.65, 4: 2.84}[candidate.engines]
    gulps = {1: 1.4, 2: 1.25, 3: 1.15, 4: 1.1}[candidate.engines]
    sequences = interpolated(
        {64: 0.35, 128: 0.55, 256: 0.8, 512: 1.0, 1024: 1.02}, candidate.filled
    )
    graphs = 0.85 if has_slow_steps(candidate) else 1.0
    return 18_000 * engines * sequences * graphs * gulp_factor(candidate, gulps)


def large_model(candidate: Candidate) -> float:
    """8B on an H200: the card is the limit, so sequences pay, and engines little."""
    few = {1: 1.0, 2: 1.06, 3: 1.07, 4: 1.07}[candidate.engines]
    many = {1: 1.0, 2: 1.01, 3: 1.01, 4: 1.01}[candidate.engines]
    is_many = candidate.filled > MAX_DEFAULT_GRAPH
    sequences = interpolated(
        {64: 0.4, 128: 0.65, 256: 0.88, 512: 1.0, 1024: 1.25, 2048: 1.25}, candidate.filled
    )
    graphs = 0.88 if has_slow_steps(candidate) else 1.0
    gulps = gulp_factor(candidate, 1.02 if is_many else 1.13)
    return 9_500 * (many if is_many else few) * sequences * graphs * gulps


def gulp_factor(candidate: Candidate, best: float) -> float:
    """Return what gulps give: the most at the worker's own size, less the farther from it."""
    if candidate.refill == PLAIN:
        return 1.0
    size = candidate.refill or candidate.filled / 8
    return 1 + (best - 1) * max(0.0, 1 - abs(log2(8 * size / candidate.filled)) / 3)


@dataclass
class SimulatedCard:
    """A device with a clock; measures as `EnginePool` does.

    Attributes:
        speed: Tokens per second of a candidate, without noise.
        plan: Time and slots.
        start_s: Shortest and longest start of an engine.
        close_s: Time to end engines.
        noise: Standard deviation of one measurement, as a share.
        cache: Requests that the KV cache of one slot holds.
        seed: Seed of the noise and of the starts.
        now: Seconds so far.
        best: Best candidate of the search so far.
        starts: Engines started so far.
        times: Measurements of each candidate so far.
    """

    speed: Speed
    plan: TimePlan
    start_s: tuple[float, float] = (50.0, 90.0)
    close_s: float = 6.0
    noise: float = 0.0
    cache: float = float("inf")
    seed: int = 0
    now: float = 0.0
    best: Candidate | None = None
    starts: list[Setting] = field(default_factory=list)
    times: Counter[Candidate] = field(default_factory=Counter)

    def has_time(self, candidate: Candidate, best: Candidate | None) -> bool:
        self.best = best
        return self.plan.has_time(candidate, best, self.now)

    def fits(self, candidates: Sequence[Candidate]) -> bool:
        return self.plan.fits(candidates, self.now)

    def turns(self, best: Candidate) -> list[Candidate]:
        self.best = None
        return self.plan.turns(best, self.now)

    def prepare(self, candidate: Candidate) -> bool:
        """Let the time pass that the candidate's engines take to start; return whether they did."""
        slots, budget = self.plan.slots, self.plan.budget
        if slots.to_close(candidate):
            self.now += self.close_s
            budget.took_close(self.close_s)
        for _ in range(slots.num_to_start(candidate)):
            chance = random.Random(f"{self.seed} start {len(self.starts)}")
            seconds = chance.uniform(*self.start_s)
            left_s = self.plan.start_timeout_s(self.best, self.now)
            self.now += min(seconds, left_s)
            budget.took_start(min(seconds, left_s), has_failed=seconds > left_s)
            if seconds > left_s:
                return False
            self.starts.append(candidate.setting)
        keep = self.plan.start.setting if self.plan.start else None
        self.plan.slots = replace(slots.after(candidate), keep=keep)
        return True

    async def measure(self, candidate: Candidate) -> MeasuredPoint:
        if not self.prepare(candidate):
            return MeasuredPoint(candidate, "the engine did not start in time")
        self.times[candidate] += 1
        chance = random.Random(f"{self.seed} {candidate} {self.times[candidate]}")
        running = min(candidate.filled, self.cache)
        held = candidate if running == candidate.filled else candidate.filling(int(running))
        tokens_per_s = self.speed(held) * max(0.5, chance.gauss(1, self.noise))
        request_s = candidate.engines * candidate.filled * OUTPUT_TOKENS / tokens_per_s
        budget = self.plan.budget
        seconds = min(budget.point_s, budget.left_s(self.now), max(4.0, 3 * request_s))
        self.now += seconds
        budget.took_point(seconds)
        return MeasuredPoint(
            candidate,
            output_tokens_per_s=tokens_per_s,
            p95_s=3 * request_s,
            running=running,
            kv_cache_peak=min(1.0, candidate.filled / self.cache),
            tokens_per_step=2.6 * running,
            seconds=seconds,
            gulp_places=0 if candidate.refill == PLAIN else candidate.filled / 8,
        )


@dataclass
class Tuned:
    """The outcome of a simulated `gristmill tune`."""

    card: SimulatedCard
    search: Search
    comparison: Comparison | None
    kept: list[MeasuredPoint]

    @property
    def ended_s(self) -> float:
        """Seconds until the last engine has ended."""
        return self.card.now + self.card.close_s

    @property
    def recommended(self) -> Candidate:
        """The candidate that the command recommends."""
        if self.comparison and (winner := self.comparison.winner(Goal())):
            return winner
        assert self.search.best is not None
        return self.search.best.candidate


async def tune_on(
    speed: Speed,
    budget_s: float,
    start: Setting,
    seed: int = 0,
    noise: float = 0.04,
    *,
    starts_s: tuple[float, float] = (50.0, 90.0),
    has_gulps: bool = True,
) -> Tuned:
    """Run a search and its comparison on a simulated card that has as many engines as slots."""
    search = Search(start, Goal(), 1, Card(start.slots, has_gulps, has_gulps))
    plan = TimePlan(Budget(budget_s, 0.0))
    card = SimulatedCard(speed, plan, starts_s, noise=noise, seed=seed)
    card.prepare(search.start)  # the first engine starts before the search
    plan.start = search.start
    plan.slots = Slots(plan.slots.resident, search.start.setting)
    kept: list[MeasuredPoint] = []
    await run_search(search, card, kept.append)
    return Tuned(card, search, await compared(search, card, kept.append), kept)


def best_speed(speed: Speed, slots: int, *, has_gulps: bool = True) -> float:
    """Return the best of all candidates on a card."""
    refills = (AUTO, PLAIN) if has_gulps else (PLAIN,)
    settings = [
        Setting(s, 16_384, s if s > 512 else 0, slots) for s in (64, 128, 256, 512, 1024, 2048)
    ]
    return max(
        speed(Candidate(setting, 1, engines, refill).full)
        for setting in settings
        for engines in range(1, slots + 1)
        for refill in refills
    )
