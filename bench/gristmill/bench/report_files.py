"""The files that `gristmill bench` writes for people: tables and plots of a report."""

import sys
from pathlib import Path
from typing import Any

from gristmill.bench import plots, table
from gristmill.bench.bench_report import BenchReport
from gristmill.bench.figures import setup_figures
from gristmill.shared.cli import say
from gristmill.shared.install import install_hint

TABLE_WIDTH = 240
RESULTS, MARKDOWN, CSV, PICTURE = "results.json", "table.md", "table.csv", "bench"


def rewrite_report(results: Path) -> None:
    """Write, print and draw the results of an earlier bench again."""
    write_report(BenchReport.load_from(results), results.parent)


def write_report(report: BenchReport, folder: Path) -> None:
    """Write the tables and plots of a report into a folder, and print the tables."""
    found = setup_figures(report.runs)
    (folder / MARKDOWN).write_text(table.markdown(found))
    (folder / CSV).write_text(table.as_csv(found))
    _print(table.rich_tables(found))
    for run in report.runs:
        if run.first_error:
            say(
                f"  {run.setup.label}, round {run.round}: some failed, the first with {run.first_error}"
            )
    what = "tables, plots"
    try:
        plots.draw(report, folder / PICTURE)
    except ModuleNotFoundError as error:
        what = "tables"
        say(
            f"no plots: {error.name} is missing; here or on another machine, {install_hint('bench')};"
            f" then run: gristmill bench --plot {folder / RESULTS}"
        )
    say(f"{what} and all measurements are in {folder}")


def _print(tables: list[Any]) -> None:
    """Print tables on stdout; a file or a pipe gets `TABLE_WIDTH` columns."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else TABLE_WIDTH)
    for each in tables:
        console.print(each)


def clear_old_files(folder: Path) -> None:
    """Remove the tables and plots of an earlier bench, before its results are overwritten."""
    for old in (MARKDOWN, CSV, f"{PICTURE}.png", f"{PICTURE}.svg"):
        (folder / old).unlink(missing_ok=True)
