"""Prints the table of the fault suite when it has run."""

import pytest
from faults import report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if report.rows:
        terminalreporter.section("faults")
        for line in report.table():
            terminalreporter.write_line(line)
        report.keep()
