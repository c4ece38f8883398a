"""All runs of one command, in turns, on one engine that is started once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gristmill.bench.arrivals import arrivals
from gristmill.bench.figures import rows
from gristmill.bench.loads import LoadRequest
from gristmill.bench.records import Run
from gristmill.bench.runs import Stage, run
from gristmill.bench.setups import ALONE, Setup
from gristmill.bench.show import shown
from gristmill.shared.cli import say
from gristmill.shared.errors import GristmillError


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run.

    Attributes:
        load: Returns the requests of a round; round 0 is the warm-up.
        setups: What is compared; the engine alone comes on top.
        num_rounds: How often each runs.
        rate: Requests a second; None for all at once.
        seed: Of the arrivals.
        num_warm_up: Requests posted before anything counts.
    """

    load: Callable[[int], Sequence[LoadRequest]]
    setups: Sequence[Setup]
    num_rounds: int = 1
    rate: float | None = None
    seed: int = 0
    num_warm_up: int = 16


async def measure(stage: Stage, plan: Plan, keep: Callable[[Run], None]) -> None:
    """Run everything; every second round backwards, so that a machine that drifts favours nobody.

    Args:
        stage: The engine and the Redis.
        plan: What to run.
        keep: Gets each run as soon as it has ended.

    Raises:
        EngineDied: The engine died, and did not come up again.
        GristmillError: It refuses the load.
    """
    await _warm_up(stage, plan)
    setups = [Setup(ALONE), *plan.setups]
    total = len(setups) * plan.num_rounds
    for round_number in range(1, plan.num_rounds + 1):
        load = plan.load(round_number)
        due_s = arrivals(len(load), plan.rate, plan.seed + round_number)
        for i, setup in enumerate(setups if round_number % 2 else reversed(setups), 1):
            title = f"run {(round_number - 1) * len(setups) + i} of {total}, {setup.label}"
            async with shown(title, len(load), lambda: stage.engine.num_ended):
                done = await run(stage, setup, load, due_s, round_number)
            say(f"  {title}: {_summary(done)}")
            keep(done)


async def _warm_up(stage: Stage, plan: Plan) -> None:
    load = plan.load(0)[: plan.num_warm_up]
    if not load:
        return
    async with shown("warm-up", len(load), lambda: stage.engine.num_ended):
        done = await run(stage, Setup(ALONE), load, arrivals(len(load), None, 0), 0)
    (row,) = rows([done])
    if row.num_failed == row.num_requests:
        raise GristmillError(f"the engine refuses this load: {done.first_error}")


def _summary(done: Run) -> str:
    (row,) = rows([done])
    failed = f", {row.num_failed:,} failed" if row.num_failed else ""
    return (
        f"{done.seconds:.1f} s, {row.requests_per_s:,.2f} requests/s,"
        f" {row.output_tokens_per_s:,.0f} tok/s{failed}"
    )
