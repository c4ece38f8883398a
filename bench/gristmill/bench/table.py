"""The figures as tables: on a terminal, as Markdown and as CSV."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from gristmill.bench.figures import Distribution, SetupFigures

if TYPE_CHECKING:
    from rich.table import Table

NOTHING = "-"

Column = Callable[[SetupFigures], str]


def _number(value: float | None, digits: int, factor: float = 1) -> str:
    return NOTHING if value is None else f"{value * factor:,.{digits}f}"


def _percent(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.0%}"


def _seconds(spread: Distribution, *names: str) -> str:
    """Return some figures of a distribution in one cell, with 3 decimals below 1 s and 2 above."""
    values = [getattr(spread, name) for name in names]
    if None in values:
        return NOTHING
    return " / ".join(f"{value:.3f}" if value < 1 else f"{value:.2f}" for value in values)


THROUGHPUT: Mapping[str, Column] = {
    "setup": lambda row: row.setup.label,
    "req/s": lambda row: _number(row.requests_per_s, 2),
    "tok/s": lambda row: _number(row.output_tokens_per_s, 0),
    "of alone": lambda row: _number(row.share, 3),
    "claim": lambda row: _number(row.claim_size, 1),
    "closed by": lambda row: ", ".join(f"{k} {v}" for k, v in row.closed_by.items()) or NOTHING,
    "running": lambda row: _number(row.running, 1),
    "steps": lambda row: _number(row.steps, 0),
    "ms a step": lambda row: _number(row.step_s, 1, 1000),
    "KV peak": lambda row: _percent(row.kv_cache_peak),
    "prefix hits": lambda row: _percent(row.hit_rate),
    "preempted": lambda row: NOTHING if row.preemptions is None else f"{row.preemptions:,}",
    "GPU": lambda row: _percent(row.gpu),
    "fairness": lambda row: _number(row.fairness, 3),
    "failed": lambda row: f"{row.num_failed:,}" if row.num_failed else NOTHING,
}
LATENCY: Mapping[str, Column] = {
    "setup": lambda row: row.setup.label,
    "wait p50 / p95, s": lambda row: _seconds(row.wait_s, "p50", "p95"),
    "TTFT p50 / p95 / p99, s": lambda row: _seconds(row.ttft_s, "p50", "p95", "p99"),
    "TPOT p50 / p95, ms": lambda row: (
        " / ".join(
            _number(value, 1, 1000)
            for value in (row.tpot_s.p50, row.tpot_s.p95)
            if value is not None
        )
        or NOTHING
    ),
    "in engine p50 / p95 / p99, s": lambda row: _seconds(row.engine_s, "p50", "p95", "p99"),
    "e2e mean, s": lambda row: _seconds(row.e2e_s, "mean"),
    "e2e p50 / p95 / p99, s": lambda row: _seconds(row.e2e_s, "p50", "p95", "p99"),
}


def cells(columns: Mapping[str, Column], rows: Sequence[SetupFigures]) -> list[list[str]]:
    """Return the lines of a table, the head first, without the columns that have no value."""
    full = [[title, *(show(row) for row in rows)] for title, show in columns.items()]
    kept = [column for column in full if any(cell != NOTHING for cell in column[1:])]
    return [list(line) for line in zip(*kept, strict=True)]


def rich_tables(rows: Sequence[SetupFigures]) -> "list[Table]":
    """Return the tables for a terminal."""
    from rich.table import Table

    tables = []
    for columns in (THROUGHPUT, LATENCY):
        head, *lines = cells(columns, rows)
        table = Table()
        for i, title in enumerate(head):
            table.add_column(title, justify="right" if i else "left")
        for line in lines:
            table.add_row(*line)
        tables.append(table)
    return tables


def markdown(rows: Sequence[SetupFigures]) -> str:
    """Return the same tables as Markdown."""
    tables = []
    for columns in (THROUGHPUT, LATENCY):
        head, *lines = cells(columns, rows)
        shown = [head, ["---"] * len(head), *lines]
        tables.append("\n".join(f"| {' | '.join(line)} |" for line in shown))
    return "\n\n".join(tables) + "\n"


def as_csv(rows: Sequence[SetupFigures]) -> str:
    """Return every figure of every row, unrounded; an unknown figure is empty."""
    flat = [_flat(asdict(row)) for row in rows]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(flat[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def _flat(fields: Mapping[str, object]) -> dict[str, object]:
    """Turn `{"wait_s": {"p50": 1}}` into `{"wait_s_p50": 1}`."""
    setup = fields["setup"]
    flat: dict[str, object] = dict(setup) if isinstance(setup, dict) else {}
    for name, value in fields.items():
        if name == "closed_by" and isinstance(value, dict):
            flat[name] = " ".join(f"{reason}={number}" for reason, number in value.items())
        elif name == "by_round" and isinstance(value, list):
            flat[name] = " ".join(f"{each:.1f}" for each in value)
        elif isinstance(value, dict):
            flat |= {f"{name}_{inner}": each for inner, each in value.items() if name != "setup"}
        else:
            flat[name] = value
    return flat
