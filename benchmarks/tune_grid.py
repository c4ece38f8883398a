"""Compare the choice of `gristmill tune` with the best point of a full grid on the same machine.

    python benchmarks/tune_grid.py --seqs 4,8,16,32,64 --tokens 512,2048 -- --model PATH ...   (vLLM's own flags)

The script has three stages:

- `grid` starts an engine for each pair and measures it full. After an interruption it measures only
  missing points.
- `tune` searches from the values of the flags, within `--budget`.
- `compare` measures the grid's best and tune's choice again, in turns on new engines. The best of
  many noisy points is partly luck.

`--stages` runs some of them alone; the script then reads the results of the others from `--out`. So
a machine that you have for ten minutes at a time is enough.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gristmill.bench.tune.budget import Budget
from gristmill.bench.tune.candidates import Candidate, Setting
from gristmill.bench.tune.engine_runner import EngineRunner
from gristmill.bench.tune.goal import Goal
from gristmill.bench.tune.load_sample import LoadSample
from gristmill.bench.tune.measured_point import MeasuredPoint
from gristmill.bench.tune.run_tune import TuneOptions, tuned
from gristmill.bench.tune.tune_report import point_line, print_report
from gristmill.shared.log import configure_logging

STAGES = ("grid", "tune", "compare")
NO_LIMIT_S = 86_400.0


class FixedPoints(Budget):
    """A budget that does not end, with points of a given length."""

    def __init__(self, point_s: float) -> None:
        super().__init__(NO_LIMIT_S, time.monotonic())
        self._point_s = point_s

    @property
    def point_s(self) -> float:
        return self._point_s


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--seqs", type=numbers, default=[4, 8, 16, 32, 64])
    parser.add_argument("--tokens", type=numbers, default=[512, 2048])
    parser.add_argument("--sample", default="lognormal", help="a named load, or a JSONL file")
    parser.add_argument("--scale", type=float, default=0.25)
    parser.add_argument("--requests", type=int, default=512)
    parser.add_argument(
        "--point-s", type=float, default=15, help="seconds for each point of the grid"
    )
    parser.add_argument("--budget", type=float, default=360, help="seconds for tune")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of the comparison")
    parser.add_argument("--stages", default=",".join(STAGES))
    parser.add_argument("--out", type=Path, default=Path("tune_grid"))
    parser.add_argument("argv", nargs="+", help="vLLM's flags, after --")
    return parser.parse_args()


async def measured(runner: EngineRunner, candidate: Candidate) -> MeasuredPoint:
    point = await runner.measure(candidate)
    print(f"  {point_line(point)}; start {runner.starts[-1].seconds:.0f} s", flush=True)
    return point


async def grid(
    args: argparse.Namespace,
    runner: EngineRunner,
    points: list[MeasuredPoint],
    keep: Callable[[list[MeasuredPoint]], None],
) -> None:
    """Measure a full engine of each pair that has no point yet, and save each point at once."""
    settings = [Setting(s, t) for t in args.tokens for s in args.seqs if t >= s]
    for candidate in [Candidate(each, each.full) for each in settings]:
        if all(each.candidate != candidate for each in points):
            points.append(await measured(runner, candidate))
            keep(points)


async def compare(
    args: argparse.Namespace, runner: EngineRunner, rivals: list[Candidate]
) -> list[MeasuredPoint]:
    """Measure the rivals in turns, each on a new engine, every second round in reverse order."""
    points = []
    for i in range(args.rounds):
        for candidate in rivals if i % 2 == 0 else reversed(rivals):
            await runner.close()
            points.append(await measured(runner, candidate))
    return points


def best_of(points: list[MeasuredPoint]) -> MeasuredPoint:
    return max(points, key=lambda point: point.tokens_per_s)


def mean_of(points: list[MeasuredPoint], candidate: Candidate) -> float:
    return statistics.fmean(each.tokens_per_s for each in points if each.candidate == candidate)


def print_grid(points: list[MeasuredPoint]) -> None:
    tokens = sorted({each.candidate.setting.max_num_batched_tokens for each in points})
    speeds = {each.candidate.setting: each.tokens_per_s for each in points}
    print(f"| max_num_seqs | {' | '.join(f'{t} tokens a step' for t in tokens)} |")
    print("| --- |" + " ---: |" * len(tokens))
    for seqs in sorted({each.max_num_seqs for each in speeds}):
        cells = [speeds.get(Setting(seqs, t), 0.0) for t in tokens]
        print(f"| {seqs} | {' | '.join(f'{cell:,.0f}' if cell else '-' for cell in cells)} |")


def print_verdict(
    grids: list[MeasuredPoint], chosen: MeasuredPoint, turns: list[MeasuredPoint]
) -> None:
    best = best_of(grids)
    print(f"grid's best: {point_line(best)}\ntune's choice: {point_line(chosen)}")
    print(f"as measured by each: {chosen.tokens_per_s / best.tokens_per_s:.3f}")
    if turns:
        ratio = mean_of(turns, chosen.candidate) / mean_of(turns, best.candidate)
        print(f"tune's choice over the grid's best, in turns: {ratio:.3f}")


async def run(args: argparse.Namespace, found: dict[str, Any], results: Path) -> None:
    stages = args.stages.split(",")
    sample = LoadSample(args.sample, args.requests, scale=args.scale)

    def keep(stage: str, points: list[MeasuredPoint], **facts: object) -> None:
        found[stage] = {"points": [point.as_json() for point in points], **facts}
        results.write_text(json.dumps(found, indent=2))

    def kept(stage: str) -> list[MeasuredPoint]:
        return [MeasuredPoint.from_json(each) for each in found.get(stage, {}).get("points", [])]

    async with EngineRunner(args.argv, sample, args.out, FixedPoints(args.point_s)) as runner:
        if "grid" in stages:
            await grid(args, runner, kept("grid"), lambda points: keep("grid", points))
    if "tune" in stages:
        options = TuneOptions(
            sample=sample, budget_s=args.budget, goal=Goal(), out=args.out, engine_argv=args.argv
        )
        report = await tuned(options)
        print_report(report, args.out)
        chosen = [report.best] if report.best else []
        keep("tune", chosen, seconds=report.spent_s, num_engines=len(report.starts))
    if kept("grid"):
        print_grid(kept("grid"))
    if not kept("grid") or not kept("tune"):
        return
    rivals = list({best_of(kept("grid")).candidate: 0, kept("tune")[0].candidate: 0})
    async with EngineRunner(args.argv, sample, args.out, FixedPoints(args.point_s)) as runner:
        if "compare" in stages:
            keep("compare", await compare(args, runner, rivals))
    print_verdict(kept("grid"), kept("tune")[0], kept("compare"))


def main() -> None:
    args = arguments()
    configure_logging("ERROR")
    args.out.mkdir(parents=True, exist_ok=True)
    results = args.out / "tune_grid.json"
    found = json.loads(results.read_text()) if results.exists() else {}
    asyncio.run(run(args, found, results))


if __name__ == "__main__":
    main()
