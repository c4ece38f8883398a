"""Test that the status of an answer decides between ack and nack."""

import pytest

from gristmill.shared.records import Claimed, Record
from gristmill.worker.engine.interface import Response
from gristmill.worker.verdicts import Ack, Nack, backoff_s, verdict


def claimed(attempt: int, max_attempts: int = 3) -> Claimed:
    header = f"1|0|0|default|normal|d||0|0|{max_attempts}||/v1/completions|||"
    return Claimed("r", attempt, attempt, 0, Record.parse(header.encode() + b"\n\n{}"))


@pytest.mark.parametrize(
    ("status", "attempt", "max_attempts", "expected"),
    [
        (200, 1, 3, "succeeded"),
        (400, 1, 3, "failed"),  # its own fault: never again
        (404, 1, 3, "failed"),
        (500, 2, 3, "failed"),  # twice is the request's own
        (500, 1, 1, "failed"),
    ],
)
def test_answer_is_final(status: int, attempt: int, max_attempts: int, expected: str) -> None:
    assert verdict(claimed(attempt, max_attempts), Response(status, b"{}")) == Ack(expected)  # type: ignore[arg-type]


def test_first_500_is_tried_again() -> None:
    decision = verdict(claimed(1), Response(500, b"{}"))
    assert isinstance(decision, Nack)
    assert decision.error == {"code": "engine_error", "message": "the engine answered 500"}


def test_backoff_has_full_jitter_below_a_growing_bound() -> None:
    waits = [backoff_s(3, 1.0, 60.0) for _ in range(2000)]
    assert 0 <= min(waits) < 0.4
    assert 3.6 < max(waits) <= 4.0
    assert max(backoff_s(30, 1.0, 60.0) for _ in range(500)) <= 60.0
