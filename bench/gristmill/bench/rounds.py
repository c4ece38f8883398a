"""Run all setups in turns, for several rounds, on one engine that starts once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gristmill.bench.arrivals import arrivals
from gristmill.bench.bench_report import SetupRun
from gristmill.bench.figures import setup_figures
from gristmill.bench.loads import LoadRequest
from gristmill.bench.progress_display import shown
from gristmill.bench.runs import RunContext, run_once
from gristmill.bench.setups import ALONE, Setup
from gristmill.shared.cli import say
from gristmill.shared.errors import GristmillError


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The runs of one bench.

    Attributes:
        load: Function that returns the requests of a round; round 0 is the warm-up.
        setups: Setups to compare; the engine alone runs in addition.
        num_rounds: Runs of each setup.
        rate: Mean arrivals per second; None submits all at once.
        seed: Seed of the arrivals.
        num_warm_up: Requests before the first run; they do not count.
    """

    load: Callable[[int], Sequence[LoadRequest]]
    setups: Sequence[Setup]
    num_rounds: int = 1
    rate: float | None = None
    seed: int = 0
    num_warm_up: int = 16


async def run_rounds(context: RunContext, plan: Plan, keep: Callable[[SetupRun], None]) -> None:
    """Run every setup in every round.

    Every second round runs in reverse order, to even out drift of the machine.

    Args:
        context: Engine and Redis of all runs.
        plan: Setups, load and rounds.
        keep: Callback for each run that has ended.

    Raises:
        EngineError: The engine died and did not start again, or its server does not answer.
        GristmillError: The engine refuses the load.
    """
    await _warm_up(context, plan)
    setups = [Setup(ALONE), *plan.setups]
    total = len(setups) * plan.num_rounds
    for round_number in range(1, plan.num_rounds + 1):
        load = plan.load(round_number)
        due_s = arrivals(len(load), plan.rate, plan.seed + round_number)
        for i, setup in enumerate(setups if round_number % 2 else reversed(setups), 1):
            title = f"run {(round_number - 1) * len(setups) + i} of {total}, {setup.label}"
            async with shown(title, len(load), lambda: context.engine.num_ended):
                done = await run_once(context, setup, load, due_s, round_number)
            say(f"  {title}: {_summary(done)}")
            keep(done)


async def _warm_up(context: RunContext, plan: Plan) -> None:
    load = plan.load(0)[: plan.num_warm_up]
    if not load:
        return
    async with shown("warm-up", len(load), lambda: context.engine.num_ended):
        done = await run_once(context, Setup(ALONE), load, arrivals(len(load), None, 0), 0)
    (row,) = setup_figures([done])
    if row.num_failed == row.num_requests:
        raise GristmillError(f"the engine refuses this load: {done.first_error}")


def _summary(done: SetupRun) -> str:
    (row,) = setup_figures([done])
    failed = f", {row.num_failed:,} failed" if row.num_failed else ""
    return (
        f"{done.seconds:.1f} s, {row.requests_per_s:,.2f} requests/s,"
        f" {row.output_tokens_per_s:,.0f} tok/s{failed}"
    )
