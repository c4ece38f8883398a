"""Test how preemptions and usage move the budget, without a clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.worker.admission.overcommit import (
    CUT,
    LARGE_RAISE,
    MAX_FACTOR,
    MIN_FACTOR,
    RAISE,
    Look,
    Overcommit,
)

LOOKS = st.lists(
    st.builds(
        Look,
        num_held=st.integers(0, 300),
        num_ended=st.integers(0, 300),
        num_preempted=st.integers(0, 300),
        usage=st.floats(0, 1),
        is_full=st.booleans(),
    ),
    max_size=60,
)


def look(
    *, held: int = 20, ended: int = 0, preempted: int = 0, usage: float = 0.9, full: bool = True
) -> Look:
    return Look(held, ended, preempted, usage, full)


def factor_after(*looks: Look) -> float:
    overcommit = Overcommit()
    for each in looks:
        overcommit = overcommit.after(each)
    return overcommit.factor


def test_storm_cuts_at_once_and_again_when_it_goes_on() -> None:
    assert factor_after(look(preempted=16)) == CUT
    assert factor_after(look(preempted=8), look(preempted=8)) == CUT
    assert factor_after(look(preempted=16), look(preempted=15)) == CUT
    assert factor_after(look(preempted=16), look(preempted=16)) == CUT * CUT


def test_budget_grows_after_a_generation_with_few_preemptions() -> None:
    assert factor_after(look(ended=19)) == 1
    assert factor_after(look(ended=19), look(ended=1)) == RAISE
    assert factor_after(look(ended=10), look(ended=10, usage=0.5)) == RAISE  # the peak counts
    assert factor_after(look(ended=20, preempted=5)) == RAISE
    assert factor_after(look(ended=20, usage=0.5)) == LARGE_RAISE


@pytest.mark.parametrize("held_at_the_end", [0, 20])
def test_preemptions_are_counted_against_all_that_were_held(held_at_the_end: int) -> None:
    """Requests of one length end in the same step, and then the engine holds none."""
    assert factor_after(look(preempted=4), look(held=held_at_the_end, ended=20)) == RAISE


def test_budget_stays_where_nothing_says_that_it_is_too_small() -> None:
    assert factor_after(look(ended=20, full=False)) == 1
    assert factor_after(look(ended=20, preempted=6)) == 1


@given(LOOKS)
def test_factor_stays_between_its_bounds(looks: list[Look]) -> None:
    overcommit = Overcommit()
    for each in looks:
        before, overcommit = overcommit, overcommit.after(each)
        assert MIN_FACTOR <= overcommit.factor <= MAX_FACTOR
        assert overcommit.factor <= before.factor * LARGE_RAISE
        assert overcommit.factor >= before.factor * CUT
