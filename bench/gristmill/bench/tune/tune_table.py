"""The points of a search as lines and as a table with bars."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gristmill.bench.tune.candidates import AUTO, PLAIN, Candidate
from gristmill.bench.tune.goal import Goal
from gristmill.bench.tune.measured_point import MeasuredPoint

if TYPE_CHECKING:
    from rich.table import Table

BAR_CELLS = 24

NUMBERS = (
    *("engines", "max_num_seqs", "tokens a step", "graphs", "in flight", "refill"),
    *("tok/s", "req/s", "p50 / p95, s", "running", "KV peak", "preempted"),
)


def curve(points: Sequence[MeasuredPoint], best: MeasuredPoint | None, goal: Goal) -> "Table":
    """Return the points as a table, in the order of their settings, with bars."""
    from rich.table import Table

    table = Table()
    for title in NUMBERS:
        table.add_column(title, justify="right")
    table.add_column("tok/s, of the best", width=BAR_CELLS)
    table.add_column("note", overflow="fold")
    highest = max((point.tokens_per_s for point in points if point.is_settled), default=0.0)
    for point in sorted(points, key=lambda point: point.candidate):
        share = point.tokens_per_s / highest if highest and point.is_settled else 0.0
        bar = "█" * round(BAR_CELLS * share)
        table.add_row(*_cells(point.candidate), *_figures(point), bar, _note(point, best, goal))
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


def _cells(candidate: Candidate) -> list[str]:
    setting = candidate.setting
    return [
        str(candidate.engines),
        str(setting.max_num_seqs),
        str(setting.max_num_batched_tokens),
        str(setting.graph_size or "-"),
        str(candidate.in_flight),
        {AUTO: "gulps", PLAIN: "1"}.get(candidate.refill, str(candidate.refill)),
    ]


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


def _note(point: MeasuredPoint, best: MeasuredPoint | None, goal: Goal) -> str:
    if point is best:
        return "best" if point.runs == 1 else f"best, mean of {point.runs}"
    if point.failure:
        return point.failure
    if not point.is_settled:
        return "did not settle"
    return "" if goal.allows(point) else "above the bound"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
