"""Print the outcome of a search: results on stdout, how it went on stderr."""

import shlex
import sys
from pathlib import Path

import click

from gristmill.bench.tune.comparison import Comparison
from gristmill.bench.tune.measured_point import MeasuredPoint
from gristmill.bench.tune.tune_files import COMMAND, SETTINGS, worker_flags
from gristmill.bench.tune.tune_report import TuneReport
from gristmill.bench.tune.tune_table import curve, point_line
from gristmill.shared.cli import say
from gristmill.worker.flag_secrets import without_secrets

TABLE_WIDTH = 180


def print_report(report: TuneReport, folder: Path) -> None:
    """Print the curve, the comparison, and the command that uses the result.

    Args:
        report: Outcome of the search.
        folder: Folder with its files.
    """
    from rich.console import Console

    for what, reason in report.search.pruned.items():
        say(f"  not tried: {what}: {reason}")
    start_s = sum(start.seconds for start in report.starts)
    say(
        f"  {report.ended_by} after {report.spent_s:.0f} s; points: {len(report.search.points)};"
        f" engine starts: {len(report.starts)}, which took {start_s:.0f} s of this time"
    )
    table = curve(report.search.points, report.best, report.goal)
    Console(width=None if sys.stdout.isatty() else TABLE_WIDTH).print(table)
    if report.best is None:
        say(f"  no settings: {_why_none(report)}")
        return
    _print_result(report, report.best)
    _print_command(report, folder)


def _print_result(report: TuneReport, best: MeasuredPoint) -> None:
    click.echo(f"best: {point_line(best)}")
    if report.comparison:
        _print_comparison(report.comparison, has_bound=report.goal.max_p95_s is not None)
    elif best.candidate == report.search.start:
        click.echo("your flags are the best that was measured")
    else:
        click.echo("not compared in turns: there was no time left; give more (--budget)")
    if report.recommended is None:
        say(f"  no settings: neither keeps a p95 of {report.goal.max_p95_s:g} s in turns; raise it")
    elif report.recommended is not best:
        click.echo("your flags win: keep them")


def _print_comparison(comparison: Comparison, *, has_bound: bool) -> None:
    for title, candidate in (("your flags", comparison.start), ("best", comparison.best)):
        speeds = " ".join(f"{point.tokens_per_s:,.0f}" for point in comparison.of(candidate))
        p95 = f", median p95 {comparison.p95_of(candidate):.2f} s" if has_bound else ""
        click.echo(f"in turns, {title}: {speeds} tok/s{p95} ({candidate})")
    click.echo(f"ratio of the medians, best over your flags: {comparison.ratio:.2f}")


def _print_command(report: TuneReport, folder: Path) -> None:
    if report.recommended is None:
        return
    shown = without_secrets(report.engine_argv)
    settings, command = (shlex.quote(str(folder / name)) for name in (SETTINGS, COMMAND))
    click.echo(f"start the worker with: sh {command}")
    click.echo("that is:")
    click.echo(f"  set -a; . {settings}; set +a")
    click.echo(f"  gristmill worker -- {worker_flags(report.recommended.candidate, shown)}")


def _why_none(report: TuneReport) -> str:
    settled = [point for point in report.search.points if point.is_settled]
    measured = [point.p95_s for point in settled if point.p95_s is not None]
    if not measured:
        return "no point could be measured; see the reasons above, or give more time (--budget)"
    return (
        f"no point keeps a p95 of {report.goal.max_p95_s:g} s; the lowest was {min(measured):.2f} s"
    )
