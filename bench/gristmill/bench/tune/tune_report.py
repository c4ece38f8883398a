"""The report of a search: the curve for people, settings for a worker, points for programs."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from gristmill.bench.tune.engine_flags import SEQUENCES, TOKENS, without_flags
from gristmill.bench.tune.engine_runner import EngineStart
from gristmill.bench.tune.goal import Goal
from gristmill.bench.tune.load_sample import LoadSample
from gristmill.bench.tune.measured_point import MeasuredPoint
from gristmill.bench.tune.search import Search
from gristmill.shared.cli import say
from gristmill.worker.engine.vllm.arguments import without_secrets

if TYPE_CHECKING:
    from rich.table import Table

SETTINGS, RESULTS = "settings.env", "tune.json"
BAR_CELLS = 24
TABLE_WIDTH = 160


@dataclass(slots=True)
class TuneReport:
    """One search.

    Attributes:
        goal: Goal of the search.
        engine_argv: The user's flags.
        engine: `EngineInfo` of the first engine.
        sample: Load that was run.
        search: The search with all its points.
        starts: Starts of all engines.
        ended_by: Reason why the search ended; "" while it runs.
        spent_s: Seconds that the search has taken so far.
        started_at: Wall-clock time of the start, in ISO format.
    """

    goal: Goal
    engine_argv: Sequence[str]
    engine: dict[str, Any]
    sample: LoadSample
    search: Search
    starts: list[EngineStart]
    ended_by: str = ""
    spent_s: float = 0.0
    started_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    @property
    def best(self) -> MeasuredPoint | None:
        """The best point; None if no point may be chosen."""
        return self.search.best

    def as_json(self) -> dict[str, Any]:
        """Return the whole report, without secrets."""
        return {
            "gristmill": version("gristmill"),
            "started_at": self.started_at,
            "ended_by": self.ended_by,
            "spent_s": self.spent_s,
            "goal": asdict(self.goal),
            "sample": asdict(self.sample),
            "engine": self.engine,
            "engine_args": without_secrets(self.engine_argv),
            "best": self.best.as_json() if self.best else None,
            "points": [point.as_json() for point in self.search.points],
            "starts": [start.as_json() for start in self.starts],
            "pruned": self.search.pruned,
        }


def clear(folder: Path) -> None:
    """Remove the files of an earlier search, which would pass for results of this search."""
    for old in (folder / SETTINGS, folder / RESULTS, *folder.glob("engine-*.log")):
        old.unlink(missing_ok=True)


def save(report: TuneReport, folder: Path) -> None:
    """Write the results so far; the settings only if some point may be chosen."""
    content = orjson.dumps(report.as_json(), option=orjson.OPT_INDENT_2)
    (folder / RESULTS).write_bytes(content)
    if report.best:
        (folder / SETTINGS).write_text(settings(report.best))
    else:
        (folder / SETTINGS).unlink(missing_ok=True)  # it may exceed the bound when repeated


def settings(best: MeasuredPoint) -> str:
    """Return the settings as an env file without quotes, for a shell or `--env-file`."""
    setting = best.candidate.setting
    return (
        f"MAX_IN_FLIGHT={best.candidate.in_flight}\n"
        f"MAX_NUM_SEQS={setting.max_num_seqs}\n"
        f"MAX_NUM_BATCHED_TOKENS={setting.max_num_batched_tokens}\n"
    )


def worker_command(report: TuneReport) -> str:
    """Return the worker's command line, which uses the variables of `settings`."""
    words = shlex.join(without_secrets(without_flags(report.engine_argv)))
    return f"gristmill worker -- {words} {SEQUENCES} $MAX_NUM_SEQS {TOKENS} $MAX_NUM_BATCHED_TOKENS"


def print_report(report: TuneReport, folder: Path) -> None:
    """Print the curve on stdout, and the result with the command that uses it on stderr."""
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else TABLE_WIDTH).print(curve(report))
    for what, reason in report.search.pruned.items():
        say(f"  not tried: {what}: {reason}")
    start_s = sum(start.seconds for start in report.starts)
    say(
        f"  {report.ended_by} after {report.spent_s:.0f} s; points: {len(report.search.points)};"
        f" engine starts: {len(report.starts)}, which took {start_s:.0f} s of this time"
    )
    if report.best is None:
        say(f"  no settings: {_why_none(report)}")
        return
    say(f"  best: {point_line(report.best)}{_gain(report)}")
    if report.best.runs == 1:
        say("  this point was measured only once; give more time to measure it twice (--budget)")
    say(f"  to use it:\n    set -a; . {folder / SETTINGS}; set +a\n    {worker_command(report)}")


def curve(report: TuneReport) -> "Table":
    """Return the points as a table, in the order of their settings, with bars."""
    from rich.table import Table

    table = Table()
    for title in ("max_num_seqs", "tokens a step", "in flight", "tok/s", "req/s", "p50 / p95, s"):
        table.add_column(title, justify="right")
    for title in ("running", "KV peak", "preempted"):
        table.add_column(title, justify="right")
    table.add_column("tok/s, of the best", width=BAR_CELLS)
    table.add_column("note", overflow="fold")
    points = sorted(report.search.points, key=lambda point: point.candidate)
    highest = max((point.tokens_per_s for point in points if point.is_settled), default=0.0)
    for point in points:
        setting = point.candidate.setting
        table.add_row(
            str(setting.max_num_seqs),
            str(setting.max_num_batched_tokens),
            str(point.candidate.in_flight),
            *_figures(point),
            "█" * round(BAR_CELLS * point.tokens_per_s / highest)
            if highest and point.is_settled
            else "",
            _note(point, report),
        )
    return table


def point_line(point: MeasuredPoint) -> str:
    """Return a point in one line."""
    if point.failure:
        return f"{point.candidate}: failed: {point.failure}"
    refused = (
        f", {point.num_failed:,} of {point.num_requests:,} refused" if point.num_failed else ""
    )
    rest = refused if point.is_settled else f"{refused}, did not settle"
    return (
        f"{point.candidate}: {point.tokens_per_s:,.0f} tok/s, p95 {_seconds(point.p95_s)} s{rest}"
    )


def _figures(point: MeasuredPoint) -> list[str]:
    if point.failure:
        return ["-"] * 6
    return [
        f"{point.tokens_per_s:,.0f}",
        f"{point.requests_per_s:,.2f}",
        f"{_seconds(point.p50_s)} / {_seconds(point.p95_s)}",
        f"{point.running:,.1f}",
        f"{point.kv_cache_peak:.0%}",
        f"{point.preemptions:,}",
    ]


def _note(point: MeasuredPoint, report: TuneReport) -> str:
    if point is report.best:
        return "best" if point.runs == 1 else f"best, mean of {point.runs}"
    if point.failure:
        return point.failure
    if not point.is_settled:
        return "did not settle"
    return "" if report.goal.allows(point) else "above the bound"


def _gain(report: TuneReport) -> str:
    """Return, as text, the gain of the best point over the user's flags alone."""
    first = report.search.points[0]
    if report.best is None or first is report.best or not report.goal.value(first):
        return ""
    factor = report.best.tokens_per_s / first.tokens_per_s
    return f"; {factor:.2f} times what these flags alone do"


def _why_none(report: TuneReport) -> str:
    settled = [point for point in report.search.points if point.is_settled]
    measured = [point.p95_s for point in settled if point.p95_s is not None]
    if not measured:
        return "no point could be measured; see the reasons above, or give more time (--budget)"
    return (
        f"no point keeps a p95 of {report.goal.max_p95_s:g} s; the lowest was {min(measured):.2f} s"
    )


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
