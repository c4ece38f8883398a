"""Test the measured time per output token, which leaves out the first token."""

import pytest

from gristmill.worker.engine import Response
from gristmill.worker.token_time import STEP, TokenTime


def answer(output_tokens: int, ttft_s: float | None) -> Response:
    return Response(200, b"{}", ttft_s=ttft_s, output_tokens=output_tokens)


def test_the_first_answer_is_believed_and_the_next_moves_it() -> None:
    rate = TokenTime()
    assert rate.ms_per_token == 0
    rate.learn(answer(101, 1.0), 3.0)
    assert rate.ms_per_token == pytest.approx(20)
    rate.learn(answer(101, 1.0), 5.0)
    assert rate.ms_per_token == pytest.approx(20 + 20 * STEP)


def test_what_generates_nothing_tells_nothing() -> None:
    rate = TokenTime()
    rate.learn(answer(0, None), 3.0)
    rate.learn(answer(1, 0.5), 3.0)
    assert rate.ms_per_token == 0


def test_a_transport_that_cannot_see_the_first_token_counts_it() -> None:
    rate = TokenTime()
    rate.learn(answer(11, None), 1.0)
    assert rate.ms_per_token == pytest.approx(100)
