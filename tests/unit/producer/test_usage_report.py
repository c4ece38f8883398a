"""Sums of the ledger and their costs."""

from datetime import date

import pytest

from gristmill.producer.usage_report import cost_of, usage_lines
from gristmill.shared.usage_ledger import LedgerRow, Usage

ROWS = [
    LedgerRow(date(2026, 11, 1), "a", "m", Usage(1, 10, 1, 5, 1000)),
    LedgerRow(date(2026, 11, 2), "a", "n", Usage(2, 20, 2, 6, 2000)),
    LedgerRow(date(2026, 11, 2), "b", "m", Usage(3, 30, 3, 7, 4000)),
]


def test_lines_sum_up_what_agrees() -> None:
    lines = usage_lines(ROWS, ("tenant",), 0)
    assert [(line.names, line.usage) for line in lines] == [
        (("a",), Usage(3, 30, 3, 11, 3000)),
        (("b",), Usage(3, 30, 3, 7, 4000)),
    ]
    assert [line.names for line in usage_lines(ROWS, ("day", "model"), 0)] == [
        ("2026-11-01", "m"),
        ("2026-11-02", "m"),
        ("2026-11-02", "n"),
    ]
    (total,) = usage_lines(ROWS, (), 0)
    assert total.usage == Usage.total(row.usage for row in ROWS)


def test_cost_is_device_hours_times_price() -> None:
    assert cost_of(3_600_000, 2.5) == 2.5
    (line,) = usage_lines([LedgerRow(date(2026, 1, 1), "a", "m", Usage(1, 400_000, 0, 100_000, 1_800_000))], (), 4.0)  # fmt: skip
    assert line.cost == pytest.approx(2.0)
    assert line.cost_per_million_tokens == pytest.approx(4.0)
    (free,) = usage_lines([LedgerRow(date(2026, 1, 1), "a", "", Usage(1))], (), 4.0)
    assert free.cost_per_million_tokens is None
