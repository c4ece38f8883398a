"""Run one `gristmill tune`: search, compare, and write the results so far after every point."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import uvloop

from gristmill.bench.tune.budget import Budget
from gristmill.bench.tune.candidates import Candidate
from gristmill.bench.tune.comparison import Comparison
from gristmill.bench.tune.engine_pool import EnginePool
from gristmill.bench.tune.first_engine import FirstEngine, first_engine, least_tokens
from gristmill.bench.tune.goal import Goal
from gristmill.bench.tune.load_sample import LoadSample
from gristmill.bench.tune.measured_point import MeasuredPoint
from gristmill.bench.tune.print_tune import print_report
from gristmill.bench.tune.search import Search
from gristmill.bench.tune.time_plan import TimePlan
from gristmill.bench.tune.tune_files import clear, save
from gristmill.bench.tune.tune_report import TuneReport
from gristmill.bench.tune.tune_table import point_line
from gristmill.shared.cli import made_folder, say
from gristmill.shared.errors import SettingsError

IS_DONE, TIME_IS_UP = "the search is done", "the time is up"

Keep = Callable[[MeasuredPoint], None]
"""Callback for each point, called after its receiver has it."""


class Measurer(Protocol):
    """Measures the points of a search: an `EnginePool`, or a computed surface in tests."""

    def has_time(self, candidate: Candidate, best: Candidate | None) -> bool:
        """Return whether a candidate can be measured, with time left to compare the best."""

    def fits(self, candidates: Sequence[Candidate]) -> bool:
        """Return whether these candidates can be measured one after another."""

    def turns(self, best: Candidate) -> list[Candidate]:
        """Return the order in which to compare the best with the start."""

    async def measure(self, candidate: Candidate) -> MeasuredPoint:
        """Measure a point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """Options of the command line; `commands.py` explains each."""

    sample: LoadSample
    budget_s: float
    goal: Goal
    out: Path
    engine_argv: tuple[str, ...]
    max_engines: int | None = None


def run_tune(options: TuneOptions) -> int:
    """Search, write the results and print them.

    Returns:
        0; or 1 if no point may be chosen, which leaves no settings.

    Raises:
        GristmillError: The sample, the flags or the budget cannot be used; the message says what to
            do.
    """
    options.sample.requests()  # a bad line is an error before an engine starts
    made_folder(options.out)
    clear(options.out)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        report = runner.run(tuned(options))
    print_report(report, options.out)
    return 0 if report.recommended else 1


async def tuned(options: TuneOptions) -> TuneReport:
    """Search within the budget, and return the report."""
    plan = TimePlan(Budget(options.budget_s, time.monotonic()))
    async with EnginePool(options.engine_argv, options.sample, options.out, plan) as pool:
        first = await first_engine(pool, options.max_engines)
        least = least_tokens(first.info, options.engine_argv)
        search = Search(first.setting, options.goal, least, first.card)
        plan.start = search.start
        _check_time(plan)
        report = _report(options, first, search, pool)

        def keep(point: MeasuredPoint) -> None:
            say(f"  {point_line(point)}")
            report.spent_s = time.monotonic() - plan.budget.started_at
            save(report, options.out)

        report.ended_by = await run_search(search, pool, keep)
        report.comparison = await compared(search, pool, keep)
    report.spent_s = time.monotonic() - plan.budget.started_at
    save(report, options.out)
    return report


async def run_search(search: Search, measurer: Measurer, keep: Keep) -> str:
    """Measure the candidates that the search asks for, as far as there is time for each.

    Args:
        search: Search that chooses the next candidate.
        measurer: Measures each candidate.
        keep: Callback for each point, called after the search received the point.

    Returns:
        The reason why the search ended.
    """
    asks = search.asks()
    candidate, is_late = next(asks), False
    while True:
        best = search.best.candidate if search.best else None
        has_time = measurer.has_time(candidate, best)
        point = await measurer.measure(candidate) if has_time else None
        is_late = is_late or not has_time
        try:
            candidate = asks.send(point)
            is_done = False
        except StopIteration:
            is_done = True
        if point:
            keep(point)
        if is_done:
            return TIME_IS_UP if is_late else IS_DONE


async def compared(search: Search, measurer: Measurer, keep: Keep) -> Comparison | None:
    """Measure the best point and the start in turns, as often as there is time.

    If there is no time to start the engines of the best again, the next best that is near takes its
    place.

    Returns:
        The comparison; None if the start is the best, or if there is no time for one round.
    """
    if search.best is None or search.best.candidate == search.start:
        return None
    rivals = [each for each in search.near_best() if each != search.start]
    order = next(filter(None, map(measurer.turns, rivals)), [])
    if not order:
        return None
    comparison = Comparison(search.start, next(each for each in order if each != search.start))
    while order and measurer.fits(order[:1]):
        point = await measurer.measure(order.pop(0))
        comparison.points.append(point)
        keep(point)
    return comparison if comparison.is_complete else None


def _report(
    options: TuneOptions, first: FirstEngine, search: Search, pool: EnginePool
) -> TuneReport:
    goal, argv, sample = options.goal, options.engine_argv, options.sample
    return TuneReport(goal, argv, first.info, sample, search, pool.starts)


def _check_time(plan: TimePlan) -> None:
    budget, start = plan.budget, plan.start
    if start is None or plan.fits([start], time.monotonic()):
        return
    raise SettingsError(
        f"the engine took {budget.start_s:.0f} s to start, and a budget of {budget.budget_s:.0f} s leaves no time to"
        f" measure; each setting needs a start: give about --budget {10 * (budget.start_s + budget.point_s) / 60:.0f}m"
    )
