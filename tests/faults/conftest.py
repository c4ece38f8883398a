"""Prints the table of the fault suite when it has run."""

import pytest

pytest.register_assert_rewrite("faults.outcome")

from faults import report  # noqa: E402  # after the line that gives its assertions their words


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if report.rows:
        terminalreporter.section("faults")
        for line in report.table():
            terminalreporter.write_line(line)
        report.keep()
