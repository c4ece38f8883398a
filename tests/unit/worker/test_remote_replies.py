"""Test what is read from a server's replies."""

from datetime import UTC, datetime

import pytest

from gristmill.worker.engine.remote_replies import MAX_RETRY_AFTER_S, retry_after_s

NOON = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120),
        ("Thu, 01 Jan 2026 12:02:00 GMT", 120),
        ("Thu, 01 Jan 2026 11:00:00 GMT", 0),  # past
        ("Thu, 01 Jan 2026 12:02:00 -0000", 120),
        ("99999999", MAX_RETRY_AFTER_S),
        ("-5", 0),
        ("soon", 0),
        ("\u00b2", 0),
        ("", 0),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str, seconds: float) -> None:
    assert retry_after_s(value, NOON) == seconds
