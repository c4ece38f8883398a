"""The table of a run of the fault suite, printed at the end of the session and kept as JSON if asked."""

import json
import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from faults.outcome import Outcome


@dataclass
class Row:
    """What is known of one kind of fault."""

    runs: int = 0
    requests: int = 0
    lost: int = 0
    doubled: int = 0
    innocents: int = 0
    recoveries_s: list[float] = field(default_factory=list)


rows: defaultdict[str, Row] = defaultdict(Row)


def count(kinds: Iterable[str], outcome: Outcome) -> None:
    """Add a run to the row of each fault that happened in it."""
    for kind in kinds:
        row = rows[kind]
        row.runs += 1
        row.requests += outcome.num_requests
        row.lost += outcome.num_lost
        row.doubled += outcome.num_doubled
        row.innocents += outcome.num_innocents


def note_recovery(kind: str, seconds: float) -> None:
    """Add the time until requests could be claimed again."""
    rows[kind].recoveries_s.append(seconds)


def table() -> list[str]:
    """Return the rows as Markdown."""
    lines = [
        "| fault | runs | requests | lost | doubled | innocents dead-lettered | recovery p50 / p99, s |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for kind, row in sorted(rows.items()):
        recovery = ""
        if times := sorted(row.recoveries_s):
            p50, p99 = times[len(times) // 2], times[min(len(times) - 1, len(times) * 99 // 100)]
            recovery = f"{p50:.2f} / {p99:.2f} ({len(times)})"
        lines.append(
            f"| {kind} | {row.runs:,} | {row.requests:,} | {row.lost} | {row.doubled} | {row.innocents} | {recovery} |"
        )
    return lines


def keep() -> None:
    """Write the rows where GRISTMILL_FAULT_REPORT says."""
    if path := os.environ.get("GRISTMILL_FAULT_REPORT"):
        Path(path).write_text(json.dumps({kind: asdict(row) for kind, row in rows.items()}))
