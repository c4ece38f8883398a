"""Run one `gristmill tune`: search, and write the results so far after every point."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import uvloop

from gristmill.bench.tune.budget import Budget
from gristmill.bench.tune.candidates import Candidate, Setting
from gristmill.bench.tune.engine_flags import setting_of
from gristmill.bench.tune.engine_runner import EngineRunner
from gristmill.bench.tune.goal import Goal
from gristmill.bench.tune.load_sample import LoadSample
from gristmill.bench.tune.measured_point import MeasuredPoint
from gristmill.bench.tune.search import Search
from gristmill.bench.tune.tune_report import TuneReport, clear, point_line, print_report, save
from gristmill.shared.cli import made_folder, say
from gristmill.shared.errors import EngineDied, GristmillError, SettingsError

FIRST_START_TIMEOUT_S = 1800.0
"""Seconds for the first start, which may load and compile. A start longer than the budget is an
error."""

IS_DONE, TIME_IS_UP = "the search is done", "the time is up"


class Measurer(Protocol):
    """Measures the points of a search: an `EngineRunner`, or a computed surface in tests."""

    def has_time(self, setting: Setting) -> bool:
        """Return whether a point of this setting fits into the time left."""

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


def run_tune(options: TuneOptions) -> int:
    """Search, write the results and print them.

    Returns:
        0; or 1 if no point may be chosen, which leaves no settings.

    Raises:
        GristmillError: The sample, the flags or the budget cannot be used; the message says what to
            do.
    """
    load = options.sample.requests()  # raises for a wrong line before an engine starts
    say(f"  {len(load):,} requests, {options.budget_s:,.0f} s")
    clear(made_folder(options.out))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            report = runner.run(tuned(options))
    except KeyboardInterrupt:
        say(f"  stopped; what was measured by then is in {options.out}")
        raise
    print_report(report, options.out)
    return 0 if report.best else 1


async def tuned(options: TuneOptions) -> TuneReport:
    """Search with true engines and save the results so far after each point."""
    budget = Budget(options.budget_s, time.monotonic())
    async with EngineRunner(options.engine_argv, options.sample, options.out, budget) as runner:
        info = await _first_start(runner)
        search = Search(setting_of(info), options.goal, _least_tokens(info, options.engine_argv))
        report = TuneReport(
            options.goal, options.engine_argv, info, options.sample, search, runner.starts
        )

        def keep(point: MeasuredPoint) -> None:
            say(f"  {point_line(point)}")
            report.spent_s = time.monotonic() - budget.started_at
            save(report, options.out)

        report.ended_by = await run_search(search, runner, keep)
    report.spent_s = time.monotonic() - budget.started_at
    save(report, options.out)
    return report


async def run_search(
    search: Search, measurer: Measurer, keep: Callable[[MeasuredPoint], None]
) -> str:
    """Measure the candidates that the search asks for while there is time.

    Args:
        search: Search that chooses the next candidate.
        measurer: Measures each candidate.
        keep: Callback for each point, called after the search received the point.

    Returns:
        The reason why the search ended.
    """
    asks = search.asks()
    candidate = next(asks)
    while measurer.has_time(candidate.setting):
        point = await measurer.measure(candidate)
        try:
            candidate = asks.send(point)
        except StopIteration:
            keep(point)
            return IS_DONE
        keep(point)
    return TIME_IS_UP


async def _first_start(runner: EngineRunner) -> dict[str, Any]:
    try:
        info = await runner.start(None, FIRST_START_TIMEOUT_S)
    except EngineDied as error:
        raise GristmillError(f"the engine does not start with these flags: {error}") from error
    if not runner.has_time(setting_of(info)):
        start_s, budget_s = runner.budget.start_s, runner.budget.budget_s
        raise SettingsError(
            f"the engine took {start_s:.0f} s to start, and a budget of {budget_s:.0f} s leaves no time to measure;"
            f" each setting needs a start: give about --budget {10 * (start_s + runner.budget.point_s) / 60:.0f}m"
        )
    return info


def _least_tokens(info: dict[str, Any], argv: Sequence[str]) -> int:
    is_whole = any(word.replace("_", "-") == "--no-enable-chunked-prefill" for word in argv)
    return int(info["max_model_len"]) if is_whole else 1
