"""Test the estimates of tokens, which learn from ended requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.worker.admission.token_estimates import SeenTokens, Tokens

NUMBERS = st.integers(0, 10**6)
TOKENS = st.builds(Tokens, NUMBERS, NUMBERS)
PAIRS = st.lists(st.tuples(TOKENS, TOKENS), max_size=50)


def seen_of(pairs: list[tuple[Tokens, Tokens]]) -> SeenTokens:
    seen = SeenTokens()
    for estimated, counted in pairs:
        seen = seen.after(estimated, counted)
    return seen


def test_headers_are_believed_before_anything_was_seen() -> None:
    assert SeenTokens().corrected(Tokens(10, 20)) == Tokens(10, 20)
    assert SeenTokens().uncorrected(30) == 30


def test_estimates_come_to_what_requests_really_take() -> None:
    """The bytes of token ids overestimate a prompt, and answers stay far below max_tokens."""
    seen = seen_of([(Tokens(150, 4000), Tokens(100, 200))] * 400)
    taken = seen.corrected(Tokens(1500, 40_000))
    assert taken.prompt == pytest.approx(1000, rel=0.01)
    assert taken.output == pytest.approx(2000, rel=0.05)
    assert seen.uncorrected(300) == pytest.approx(4150, rel=0.05)


def test_first_to_end_do_not_stand_for_all() -> None:
    """The shortest requests of a generation end first."""
    seen = seen_of([(Tokens(0, 4000), Tokens(0, 10))] * 4)
    assert seen.corrected(Tokens(0, 4000)).output > 2000


def test_one_wrong_header_spoils_little() -> None:
    seen = seen_of([(Tokens(100, 100), Tokens(100, 100))] * 100)
    assert seen.after(Tokens(1, 1), Tokens(1, 3000)).corrected(Tokens(0, 100)).output < 160
    assert seen.after(Tokens(1, 10_000), Tokens(1, 1)).corrected(Tokens(0, 100)).output > 35


@given(PAIRS, TOKENS)
def test_correction_is_never_negative_and_grows_with_the_estimate(
    pairs: list[tuple[Tokens, Tokens]], estimate: Tokens
) -> None:
    seen = seen_of(pairs)
    taken = seen.corrected(estimate)
    assert taken.prompt >= 0
    assert taken.output >= 0
    assert seen.corrected(estimate + Tokens(5, 7)).total >= taken.total
    assert seen.uncorrected(taken.total) >= 0


@given(PAIRS, NUMBERS)
def test_free_tokens_are_never_turned_into_none(
    pairs: list[tuple[Tokens, Tokens]], number: int
) -> None:
    assert (seen_of(pairs).uncorrected(number) > 0) == (number > 0)


@given(TOKENS, TOKENS, NUMBERS)
def test_tokens_add_up(one: Tokens, other: Tokens, limit: int) -> None:
    assert one + other - other == one
    assert max(one.clipped(limit).prompt, one.clipped(limit).output) <= limit
