"""One call of `gristmill tune`: search, and after every point write what is known by then."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import uvloop

from gristmill.bench.tune.budget import Budget
from gristmill.bench.tune.points import Candidate, Goal, Point, Setting
from gristmill.bench.tune.report import Report, clear, point_line, print_report, save
from gristmill.bench.tune.rig import Rig, setting_of
from gristmill.bench.tune.sample import Sample
from gristmill.bench.tune.search import Search
from gristmill.shared.cli import made_folder, say
from gristmill.shared.errors import EngineDied, GristmillError, SettingsError

FIRST_START_TIMEOUT_S = 1800.0
"""Of the first engine, which may compile and load; it may go over the budget, and is then told."""

IS_DONE, TIME_IS_UP = "the search is done", "the time is up"


class Measurer(Protocol):
    """What a search needs: a `Rig`, or a computed surface."""

    def has_time(self, setting: Setting) -> bool:
        """Whether a point of this setting fits into what is left."""

    async def measure(self, candidate: Candidate) -> Point:
        """Measure a point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was asked for; `commands.py` has the meaning of each."""

    sample: Sample
    budget_s: float
    goal: Goal
    out: Path
    engine_argv: tuple[str, ...]


def run_tune(options: Options) -> int:
    """Search, write and print.

    Returns:
        0, or 1 if no point keeps the bound: then no settings are written.

    Raises:
        GristmillError: The sample, the flags or the budget are of no use; the message says what to do.
    """
    load = options.sample.requests()  # a line that is wrong is told before an engine starts
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


async def tuned(options: Options) -> Report:
    """Search with true engines; what is known after each point is in the folder."""
    budget = Budget(options.budget_s, time.monotonic())
    async with Rig(options.engine_argv, options.sample, options.out, budget) as rig:
        info = await _first_start(rig)
        search = Search(setting_of(info), options.goal, _least_tokens(info, options.engine_argv))
        report = Report(options.goal, options.engine_argv, info, options.sample, search, rig.starts)

        def keep(point: Point) -> None:
            say(f"  {point_line(point)}")
            report.spent_s = time.monotonic() - budget.started_at
            save(report, options.out)

        report.ended_by = await walk(search, rig, keep)
    report.spent_s = time.monotonic() - budget.started_at
    save(report, options.out)
    return report


async def walk(search: Search, measurer: Measurer, keep: Callable[[Point], None]) -> str:
    """Measure what the search asks for while there is time.

    Args:
        search: Which points.
        measurer: Where they are measured.
        keep: Gets each point, once the search knows it.

    Returns:
        Why it ended.
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


async def _first_start(rig: Rig) -> dict[str, Any]:
    try:
        info = await rig.start(None, FIRST_START_TIMEOUT_S)
    except EngineDied as error:
        raise GristmillError(f"the engine does not start with these flags: {error}") from error
    if not rig.has_time(setting_of(info)):
        start_s, budget_s = rig.budget.start_s, rig.budget.budget_s
        raise SettingsError(
            f"the engine took {start_s:.0f} s to start, and a budget of {budget_s:.0f} s leaves no time to measure;"
            f" each setting needs a start: give --budget {10 * (start_s + rig.budget.point_s) / 60:.0f}m or so"
        )
    return info


def _least_tokens(info: dict[str, Any], argv: Sequence[str]) -> int:
    is_whole = any(word.replace("_", "-") == "--no-enable-chunked-prefill" for word in argv)
    return int(info["max_model_len"]) if is_whole else 1
