"""The search against computed surfaces: how near it comes to the grid's best, and with how few engines."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from math import exp, log2

import pytest

from gristmill.bench.tune.candidates import Candidate, Setting
from gristmill.bench.tune.goal import Goal
from gristmill.bench.tune.measured_point import MeasuredPoint
from gristmill.bench.tune.search import Search

SEQUENCES = [2**i for i in range(2, 12)]
TOKENS = [2**i for i in range(9, 16)]
GRID = [Setting(s, t) for s in SEQUENCES for t in TOKENS if t >= s]

Speed = Callable[[float, Setting], float]
"""Tokens a second with so many running, on an engine of that setting."""


def saturating(knee: float) -> Speed:
    """More running is faster, less and less; tokens do not matter."""
    return lambda running, setting: 1000 * running / (running + knee)


def falling(peak: float) -> Speed:
    """Beyond the peak more running is slower: caches, or a process that cannot keep up."""
    return lambda running, setting: (
        1000 * running / (running + peak / 4) * exp(-((max(0, log2(running / peak)) / 3) ** 2))
    )


def by_tokens(speed: Speed, peak: int) -> Speed:
    """The same with a best `max_num_batched_tokens`: a third is lost two steps away from it."""

    def both(running: float, setting: Setting) -> float:
        steps = log2(setting.max_num_batched_tokens / peak)
        return speed(running, setting) * exp(-((steps / 3) ** 2))

    return both


def table(speeds: dict[int, float]) -> Speed:
    """What was measured with so many running, and straight lines between, over the logarithm."""

    def speed(running: float, setting: Setting) -> float:
        knots = sorted(speeds)
        at = min(max(running, knots[0]), knots[-1])
        high = next(knot for knot in knots if knot >= at)
        low = max((knot for knot in knots if knot < high), default=high)
        share = log2(at / low) / log2(high / low) if high > low else 0.0
        return speeds[low] + share * (speeds[high] - speeds[low])

    return speed


@dataclass
class Surface:
    """Answers for an engine; counts what it was asked.

    Attributes:
        speed: Without noise.
        noise: Standard deviation of one measurement, as a share.
        cache: Requests that the KV cache holds.
        breaks_at: No engine of so many sequences starts.
        breaks_below: Nor one of fewer tokens.
        step_share: How full steps are; None for as many tokens as the requests that run bring.
        prompt_share: Tokens of prompts for each of answers: a step of so many holds that many fewer requests.
        engines: Asked for, failed ones too.
    """

    speed: Speed
    noise: float = 0.0
    cache: float = float("inf")
    breaks_at: int = 10**9
    breaks_below: int = 0
    step_share: float | None = None
    prompt_share: float = 1.0
    seed: int = 0
    engines: set[Setting] = field(default_factory=set)
    asked: Counter[Candidate] = field(default_factory=Counter)

    def truth(self, candidate: Candidate) -> MeasuredPoint:
        setting = candidate.setting
        is_broken = setting.max_num_seqs >= self.breaks_at
        if is_broken or setting.max_num_batched_tokens < self.breaks_below:
            return MeasuredPoint(candidate, "out of memory")
        held = float("inf")
        if self.step_share is None:
            held = setting.max_num_batched_tokens / (1 + self.prompt_share)
        running = min(candidate.in_flight / 1.07, setting.max_num_seqs, self.cache, held)
        tokens_per_s = self.speed(running, setting)
        return MeasuredPoint(
            candidate,
            output_tokens_per_s=tokens_per_s,
            p95_s=100 * candidate.in_flight / tokens_per_s,  # Little's law
            running=running,
            kv_cache_peak=min(1.0, candidate.in_flight / self.cache),
            tokens_per_step=(1 + self.prompt_share) * running
            if self.step_share is None
            else self.step_share * setting.max_num_batched_tokens,
        )

    def measured(self, candidate: Candidate) -> MeasuredPoint:
        self.engines.add(candidate.setting)
        self.asked[candidate] += 1
        chance = random.Random(f"{candidate} {self.seed} {self.asked[candidate]}")
        point = self.truth(candidate)
        factor = max(0.5, chance.gauss(1, self.noise))
        if point.p95_s is None:
            return point
        return MeasuredPoint(
            candidate,
            output_tokens_per_s=point.output_tokens_per_s * factor,
            p95_s=point.p95_s / factor,
            running=point.running,
            kv_cache_peak=point.kv_cache_peak,
            tokens_per_step=point.tokens_per_step,
        )

    def best_of_grid(self, goal: Goal) -> float:
        """Return the best of every engine with every in-flight limit in steps of a tenth."""
        steps = [0.05 * i for i in range(1, 23)]
        candidates = [
            Candidate(setting, max(1, round(setting.max_num_seqs * step)))
            for setting in GRID
            for step in steps
        ]
        full = [Candidate(setting, setting.full) for setting in GRID]
        return max(goal.value(self.truth(candidate)) for candidate in candidates + full)


def searched(
    surface: Surface,
    start: Setting,
    goal: Goal | None = None,
    num_engines: int = 10**9,
    min_num_batched_tokens: int = 1,
) -> Search:
    """Run a search to its end, or until it asks for one more engine than allowed."""
    search = Search(start, goal or Goal(), min_num_batched_tokens)
    asks = search.asks()
    try:
        candidate = next(asks)
        while candidate.setting in surface.engines or len(surface.engines) < num_engines:
            candidate = asks.send(surface.measured(candidate))
    except StopIteration:
        pass
    return search


def share(surface: Surface, search: Search, goal: Goal | None = None) -> float:
    """Return the true value of what was chosen, as a share of the grid's best."""
    goal = goal or Goal()
    assert search.best is not None
    truth = surface.truth(search.best.candidate)
    return goal.value(truth) / surface.best_of_grid(goal)


STARTS = [Setting(256, 2048), Setting(16, 512), Setting(1024, 16384)]

SURFACES = {
    "monotone": saturating(200),
    "plateau": lambda running, setting: 1000 * min(1.0, running / 100),
    "peaked": falling(32),
    "peaked high": falling(1000),
    "peaked in both": by_tokens(falling(64), 2048),
    "monotone, tokens peaked": by_tokens(saturating(200), 8192),
    "two CPU cores": table({4: 102, 8: 143, 16: 186, 32: 217, 64: 281, 128: 262, 256: 257}),
}


@pytest.mark.parametrize("start", STARTS, ids=str)
@pytest.mark.parametrize("name", SURFACES)
def test_search_finds_the_best_of_the_grid_with_far_fewer_engines(
    name: str, start: Setting
) -> None:
    surface = Surface(SURFACES[name], step_share=0.5)
    search = searched(surface, start)
    assert share(surface, search) >= 0.95
    assert len(surface.engines) <= len(GRID) / 5


@pytest.mark.parametrize("start", STARTS, ids=str)
@pytest.mark.parametrize("name", SURFACES)
def test_noise_of_short_runs_seldom_leads_astray(name: str, start: Setting) -> None:
    best = Surface(SURFACES[name]).best_of_grid(Goal())
    shares = list[float]()
    for seed in range(40):
        surface = Surface(SURFACES[name], step_share=0.5, noise=0.02, seed=seed)
        found = searched(surface, start).best
        assert found is not None
        shares.append(surface.truth(found.candidate).tokens_per_s / best)
    assert sum(each >= 0.95 for each in shares) >= 36
    assert min(shares) >= 0.85


@pytest.mark.parametrize("start", STARTS, ids=str)
@pytest.mark.parametrize("name", SURFACES)
@pytest.mark.parametrize("factor", [1.5, 4.0, 20.0])
def test_bound_is_kept_and_the_best_below_it_found(
    name: str, start: Setting, factor: float
) -> None:
    surface = Surface(SURFACES[name], step_share=0.5)
    alone = surface.truth(Candidate(start, 1))
    assert alone.p95_s is not None
    goal = Goal(factor * alone.p95_s)
    search = searched(surface, start, goal)
    assert share(surface, search, goal) >= 0.95
    assert len(surface.engines) <= len(GRID) / 4


def test_bound_that_nothing_keeps_leaves_no_best() -> None:
    surface = Surface(saturating(200))
    search = searched(surface, Setting(64, 2048), Goal(max_p95_s=0.001))
    assert search.best is None
    assert [point.candidate.in_flight for point in search.points][-1] == 1
    assert "one alone takes longer than 0.001 s" in str(search.pruned)


def test_engines_that_break_end_a_direction_and_not_the_search() -> None:
    surface = Surface(saturating(200), breaks_at=1024, breaks_below=2048)
    search = searched(surface, Setting(128, 2048))
    assert search.best is not None
    assert search.best.candidate.setting.max_num_seqs == 512
    assert share(surface, search) >= 0.95
    failed = [point.candidate.setting for point in search.points if point.failure]
    assert [setting.max_num_seqs for setting in failed] == [1024, 512]


def test_engine_that_breaks_when_full_is_halved() -> None:
    surface = Surface(saturating(20), breaks_at=256)
    search = searched(surface, Setting(1024, 2048))
    assert search.best is not None
    assert search.best.candidate.setting.max_num_seqs == 128


def test_more_sequences_than_the_kv_cache_holds_are_not_tried() -> None:
    surface = Surface(saturating(200), cache=200)
    search = searched(surface, Setting(256, 2048))
    assert max(setting.max_num_seqs for setting in surface.engines) == 256
    assert "the KV cache is full with 200 running" in search.pruned.values()
    assert share(surface, search) >= 0.95


def test_more_tokens_than_a_step_ever_holds_are_not_tried() -> None:
    surface = Surface(lambda running, setting: 1000 * min(1.0, running / 100))
    search = searched(surface, Setting(128, 8192))
    assert max(setting.max_num_batched_tokens for setting in surface.engines) == 8192
    assert any("far from its limit" in reason for reason in search.pruned.values())


def test_fewer_tokens_than_a_prompt_are_not_tried_without_chunked_prefill() -> None:
    surface = Surface(by_tokens(saturating(20), 512))
    search = searched(surface, Setting(64, 4096), min_num_batched_tokens=4096)
    assert min(setting.max_num_batched_tokens for setting in surface.engines) == 4096
    assert any("a whole prompt, 4096 tokens" in reason for reason in search.pruned.values())


def test_least_tokens_that_a_prompt_allows_are_tried() -> None:
    surface = Surface(by_tokens(saturating(20), 512))
    search = searched(surface, Setting(64, 4096), min_num_batched_tokens=2048)
    assert search.best is not None
    assert search.best.candidate.setting.max_num_batched_tokens == 2048


def test_gentle_slope_of_the_tokens_is_followed_through_the_noise() -> None:
    """512 tokens a step are 7 % faster than 4,096, and of each doubling between the noise leaves little."""

    def speed(running: float, setting: Setting) -> float:
        steps = log2(setting.max_num_batched_tokens / 512)
        return saturating(20)(min(running, 64), setting) * (1 - 0.024 * abs(steps))

    shares = list[float]()
    for seed in range(40):
        surface = Surface(speed, step_share=0.1, noise=0.02, seed=seed)
        shares.append(share(surface, searched(surface, Setting(256, 4096))))
    assert sum(each >= 0.95 for each in shares) >= 36


def test_search_that_is_stopped_has_the_best_so_far() -> None:
    surface = Surface(saturating(200))
    search = searched(surface, Setting(64, 2048), num_engines=3)
    assert len(surface.engines) == 3
    assert search.best is not None
    assert search.best.candidate == Candidate(Setting(256, 2048), 282)


def test_few_in_flight_win_a_tie() -> None:
    search = searched(
        Surface(lambda running, setting: 1000 * min(1.0, running / 8)), Setting(64, 64)
    )
    assert search.best is not None
    assert search.best.candidate.in_flight <= 18


def test_nothing_but_the_best_is_measured_twice() -> None:
    surface = Surface(by_tokens(falling(64), 512), step_share=0.5)
    search = searched(surface, Setting(256, 2048))
    assert search.best is not None
    assert search.best.runs == 2
    assert [each for each, times in surface.asked.items() if times > 1] == [search.best.candidate]


def test_best_that_was_luck_falls_back_behind_the_next() -> None:
    search = Search(Setting(4, 4), Goal())
    asks, lucky = search.asks(), Candidate(Setting(4, 4), 3)
    times = Counter[Candidate]()
    candidate = next(asks)
    with pytest.raises(StopIteration):
        while True:
            times[candidate] += 1
            is_lucky = candidate == lucky and times[candidate] == 1
            speed = 200.0 if is_lucky else 100.0 + candidate.in_flight / 10
            candidate = asks.send(MeasuredPoint(candidate, output_tokens_per_s=speed, p95_s=1.0))
    assert (times[lucky], search.points[1].candidate) == (2, lucky)
    assert search.points[1].output_tokens_per_s == pytest.approx((200 + 100.3) / 2)
    assert search.best is not None
    assert search.best.runs == 2


def test_engine_that_fails_the_second_time_is_not_chosen() -> None:
    search = Search(Setting(4, 4), Goal())
    asks = search.asks()
    times = Counter[Candidate]()
    candidate = next(asks)
    with pytest.raises(StopIteration):
        while True:
            times[candidate] += 1
            is_broken = candidate.in_flight == 5 and times[candidate] == 2
            speed = 1000.0 if candidate.in_flight == 5 else candidate.in_flight
            point = MeasuredPoint(candidate, "out of memory" if is_broken else "", speed, p95_s=1.0)
            candidate = asks.send(point)
    assert next(each.failure for each in search.points) == "out of memory"
    assert search.best is not None
    assert (search.best.candidate.in_flight, search.best.runs) != (5, 2)


def test_measurement_that_did_not_settle_takes_nothing_from_one_that_did() -> None:
    candidate = Candidate(Setting(4, 4), 5)
    long = MeasuredPoint(candidate, output_tokens_per_s=100, p95_s=1)
    short = MeasuredPoint(candidate, output_tokens_per_s=7, p95_s=9, is_settled=False)
    for merged in (long.merged(short), short.merged(long)):
        assert (merged.output_tokens_per_s, merged.is_settled, merged.runs) == (100, True, 2)


@pytest.mark.parametrize("noise", [0.0, 0.06])
def test_steps_full_of_tokens_are_widened_with_a_full_engine(noise: float) -> None:
    """An H200: of 1,024 sequences 789 ran in steps of 2,048 tokens, and 512 in flight seemed as fast."""
    shares = list[float]()
    for seed in range(40):
        surface = Surface(saturating(500), prompt_share=1.6, noise=noise, seed=seed)
        shares.append(share(surface, searched(surface, Setting(256, 2048))))
    assert sum(each >= 0.95 for each in shares) >= (36 if noise else 40)


def test_point_that_did_not_settle_is_not_chosen_and_fewer_in_flight_are_tried() -> None:
    search = Search(Setting(256, 2048), Goal())
    asks, asked = search.asks(), list[Candidate]()
    candidate = next(asks)
    with pytest.raises(StopIteration):
        while True:
            asked.append(candidate)
            is_settled = candidate.in_flight < 200
            speed = 5 * candidate.in_flight if is_settled else 10**6
            candidate = asks.send(
                MeasuredPoint(candidate, output_tokens_per_s=speed, is_settled=is_settled)
            )
    assert search.best is not None
    assert search.best.candidate.in_flight in (128, 141)
    assert max(each.setting.max_num_seqs for each in asked) == 256
    assert "282 in flight did not settle in the time for a point" in search.pruned.values()


def test_search_in_which_nothing_settles_ends() -> None:
    search = Search(Setting(4, 2048), Goal())
    asks = search.asks()
    candidate = next(asks)
    with pytest.raises(StopIteration):
        while True:
            candidate = asks.send(MeasuredPoint(candidate, is_settled=False))
    assert [point.candidate.in_flight for point in search.points] == [5, 3, 2]
    assert search.best is None
