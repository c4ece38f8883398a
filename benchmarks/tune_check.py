"""Compare the choice of `gristmill tune` with other points, in turns on one device.

    python benchmarks/tune_check.py --tuned tune-results --point start --point engines=1 -- --model PATH ...

After `--` stand the flags that `gristmill tune` had. A point names what differs from tune's choice:
`engines=2`, `seqs=512`, `tokens=8192`, `graphs=1024`, `in_flight=256`, `refill=1` (no gulps) or
`refill=0` (the worker's own gulps), several with commas. `start` is what the flags alone do, and
`start,refill=1` differs from that. A point that equals the choice is left out.

All engines share the device in equal parts, so that rounds need no start: points with the same flags
use the same engines. A point is left out if there is no time to start its engines. The script prints
each point at once and the ratio after each round, and ends within `--limit-s`.
"""

import argparse
import asyncio
import json
import time
from dataclasses import fields, replace
from pathlib import Path
from statistics import median
from typing import Any

from gristmill.bench.tune.budget import LAST_CLOSE_S, Budget
from gristmill.bench.tune.candidates import Candidate, Setting
from gristmill.bench.tune.engine_pool import EnginePool
from gristmill.bench.tune.load_sample import LoadSample
from gristmill.bench.tune.time_plan import TimePlan
from gristmill.bench.tune.tune_table import point_line
from gristmill.shared.errors import EngineDied, GristmillError, SettingsError
from gristmill.shared.log import configure_logging

NAMES = {"seqs": "max_num_seqs", "tokens": "max_num_batched_tokens", "graphs": "graph_size"}
"""Short names of an engine's settings; the others are those of a candidate."""

OWN = ("engines", "in_flight", "refill")

MIN_ROUNDS = 2
"""Rounds for which time is kept before one more engine starts."""

FIRST_START_TIMEOUT_S = 300.0


class FixedPoints(Budget):
    """A budget with points of a given length."""

    def __init__(self, budget_s: float, point_s: float) -> None:
        super().__init__(budget_s, time.monotonic())
        self._point_s = point_s

    @property
    def point_s(self) -> float:
        return self._point_s

    @property
    def likely_point_s(self) -> float:
        return self.longest_point_s or self._point_s


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument(
        "--tuned", type=Path, default=Path("tune-results"), help="folder with tune.json"
    )
    parser.add_argument("--point", action="append", default=[], help="a point; may be repeated")
    parser.add_argument("--others", type=int, default=4, help="points beside tune's choice")
    parser.add_argument("--point-s", type=float, default=20, help="longest time for one point")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--limit-s", type=float, default=570, help="time for everything")
    parser.add_argument("--out", type=Path, default=Path("tune-check"), help="folder of the logs")
    parser.add_argument("argv", nargs="+", help="vLLM's flags, after --")
    return parser.parse_args()


def candidate_of(found: dict[str, Any]) -> Candidate:
    """Return a candidate by its record in tune.json."""
    setting = Setting(**{each.name: found[each.name] for each in fields(Setting)})
    return Candidate(setting, **{name: found[name] for name in OWN})


def changed(text: str, choice: Candidate, start: Candidate) -> Candidate:
    """Return the point that a word of the command line names."""
    words = text.split(",")
    base = start if words[0] == "start" else choice
    for word in words:
        if word == "start":
            continue
        name, _, value = word.partition("=")
        if not value.isdigit() or name not in (*OWN, *NAMES):
            known = ", ".join((*OWN, *NAMES))
            raise SettingsError(
                f"--point {text}: {word!r} is no NAME=NUMBER; the names are {known}"
            )
        if name in NAMES:
            base = base.on(replace(base.setting, **{NAMES[name]: int(value)}))
        elif name == "refill":
            base = base.refilled(int(value))
        else:
            own = {each: getattr(base, each) for each in OWN} | {name: int(value)}
            base = Candidate(base.setting, **own)
    return base


def points_of(args: argparse.Namespace, found: dict[str, Any]) -> list[Candidate]:
    """Return tune's choice and the other points, each with its part of the device."""
    choice, start = candidate_of(found["recommended"]), candidate_of(found["start"])
    others = dict.fromkeys(changed(text, choice, start) for text in args.point)
    others.pop(choice, None)
    points = [choice, *list(others)[: args.others]]
    most: dict[Setting, int] = {}
    for point in points:
        most[point.setting] = max(point.engines, most.get(point.setting, 0))
    slots = sum(most.values())
    return [replace(each, setting=replace(each.setting, slots=slots)) for each in points]


async def started(pool: EnginePool, points: list[Candidate]) -> list[Candidate]:
    """Start the engines of all points, and return the points for which there was time."""
    ready: list[Candidate] = []
    for point in points:
        rounds = [*ready, point] * MIN_ROUNDS
        if not pool.fits(rounds) and ready:
            print(f"left out, no time: {point}", flush=True)
            continue
        try:
            await pool.prepare(point)
            ready.append(point)
        except EngineDied as error:
            print(f"left out, its engine did not start: {point}: {error}", flush=True)
    return ready


async def check(args: argparse.Namespace, speeds: dict[Candidate, list[float]]) -> None:
    """Measure all points in rounds, as long as there is time, and fill `speeds`."""
    found = json.loads((args.tuned / "tune.json").read_text())
    plan = TimePlan(FixedPoints(args.limit_s, args.point_s))
    pool = EnginePool(args.argv, LoadSample(**found["sample"]), args.out, plan)
    points = points_of(args, found)
    async with pool, asyncio.timeout(args.limit_s - LAST_CLOSE_S):
        await pool.devices(FIRST_START_TIMEOUT_S)
        ready = await started(pool, points)
        if points[0] not in ready:
            raise GristmillError(f"tune's choice did not start: {points[0]}")
        speeds.update({point: [] for point in ready})
        for number in range(args.rounds):
            for point in ready:
                if not pool.fits([point]):
                    return
                measured = await pool.measure(point)
                print(f"round {number + 1}: {point_line(measured)}", flush=True)
                if not measured.failure:
                    speeds[point].append(measured.tokens_per_s)
            print_ratio(speeds)


def print_ratio(speeds: dict[Candidate, list[float]]) -> None:
    """Print the median of each point, and the ratio of tune's choice to the best of the others."""
    medians = {point: median(each) for point, each in speeds.items() if each}
    for point, value in medians.items():
        print(f"  {value:>10,.0f} tok/s, median of {len(speeds[point])}: {point}")
    choice, *others = speeds
    known = [medians[each] for each in others if each in medians]
    if choice in medians and known:
        ratio = medians[choice] / max(known)
        print(f"tune's choice over the best of {len(known)} others: {ratio:.3f}", flush=True)


def main() -> None:
    args = arguments()
    configure_logging("ERROR")
    args.out.mkdir(parents=True, exist_ok=True)
    speeds: dict[Candidate, list[float]] = {}
    try:
        asyncio.run(check(args, speeds))
    except TimeoutError:
        print(f"stopped after {args.limit_s:.0f} s")
    if speeds:
        print_ratio(speeds)


if __name__ == "__main__":
    main()
