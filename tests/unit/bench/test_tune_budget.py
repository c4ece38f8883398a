"""The stated time is kept, whatever an engine's start takes."""

from dataclasses import dataclass, field

import pytest

from gristmill.bench.tune.budget import Budget
from gristmill.bench.tune.candidates import Candidate, Setting
from gristmill.bench.tune.goal import Goal
from gristmill.bench.tune.measured_point import MeasuredPoint
from gristmill.bench.tune.run_tune import IS_DONE, TIME_IS_UP, run_search
from gristmill.bench.tune.search import Search


def test_point_is_a_share_of_the_budget_within_bounds() -> None:
    assert [Budget(each, 0).point_s for each in (60, 600, 3600)] == [8, 40, 90]


def test_time_for_a_point_leaves_time_to_end_the_engine() -> None:
    budget = Budget(600, started_at=1000)
    budget.took_close(10)
    assert budget.has_time(1569, is_start=False)
    assert not budget.has_time(1571, is_start=False)


def test_time_for_a_start_is_the_longest_so_far() -> None:
    budget = Budget(600, started_at=1000)
    budget.took_start(80)
    budget.took_start(40)
    budget.took_close(10)
    assert budget.has_time(1479, is_start=True)
    assert not budget.has_time(1481, is_start=True)


@dataclass
class SlowRig:
    """Engines that take their time, on a clock of their own; more sequences are always faster."""

    budget: Budget
    start_s: float
    close_s: float
    now: float = 0.0
    setting: Setting | None = None
    kept: list[MeasuredPoint] = field(default_factory=list)

    def has_time(self, setting: Setting) -> bool:
        return self.budget.has_time(self.now, is_start=setting != self.setting)

    async def measure(self, candidate: Candidate) -> MeasuredPoint:
        if self.setting != candidate.setting:
            self.now += self.start_s + (self.close_s if self.setting else 0)
            self.budget.took_start(self.start_s)
            self.budget.took_close(self.close_s)
            self.setting = candidate.setting
        self.now += min(self.budget.point_s, self.budget.left_s(self.now))
        running = min(candidate.in_flight, candidate.setting.max_num_seqs)
        return MeasuredPoint(
            candidate, output_tokens_per_s=running / (running + 5000), tokens_per_step=2 * running
        )


@pytest.mark.parametrize("budget_s", [130, 300, 600, 1200])
async def test_walk_ends_in_time_with_the_best_so_far(budget_s: float) -> None:
    runner = SlowRig(Budget(budget_s, 0), start_s=60, close_s=8)
    search = Search(Setting(4, 512), Goal())
    assert await run_search(search, runner, runner.kept.append) == TIME_IS_UP
    assert runner.now + runner.close_s <= budget_s
    assert (
        runner.now + runner.close_s + 60 + 8 + runner.budget.point_s > budget_s
    )  # nor is time left over
    assert search.best is runner.kept[-1] or search.best in runner.kept
    assert search.points == runner.kept


async def test_walk_that_is_done_leaves_the_rest_of_the_time() -> None:
    runner = SlowRig(Budget(1e6, 0), start_s=60, close_s=8)
    search = Search(
        Setting(4096, 512 * 64), Goal(max_p95_s=1)
    )  # which no point keeps: none has a p95
    assert await run_search(search, runner, runner.kept.append) == IS_DONE
    assert runner.kept[-1].candidate.in_flight == 1
    assert search.best is None
