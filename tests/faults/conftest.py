"""The fault suite runs alone, and prints its table when it has run."""

from pathlib import Path

import pytest
from faults import report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker("alone")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if report.rows:
        terminalreporter.section("faults")
        for line in report.table():
            terminalreporter.write_line(line)
        report.keep()
