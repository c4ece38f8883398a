"""The budget over the cache moves with what the engine shows; no clock."""

from hypothesis import given
from hypothesis import strategies as st

from gristmill.worker.overcommit import CUT, MAX_FACTOR, MAX_RAISE, MIN_FACTOR, Look, Overcommit

LOOKS = st.lists(
    st.builds(
        Look,
        num_held=st.integers(0, 300),
        num_ended=st.integers(0, 300),
        num_preempted=st.integers(0, 9),
        usage=st.floats(0, 1),
        is_full=st.booleans(),
    ),
    max_size=60,
)


def look(
    *, held: int = 10, ended: int = 0, preempted: int = 0, usage: float = 0.5, full: bool = True
) -> Look:
    return Look(held, ended, preempted, usage, full)


def after(*looks: Look) -> Overcommit:
    overcommit = Overcommit()
    for each in looks:
        overcommit = overcommit.after(each)
    return overcommit


def test_preemption_cuts_at_once_and_the_rest_of_it_not_again() -> None:
    assert after(look(preempted=1)).factor == CUT
    assert after(look(preempted=3), look(preempted=2), look(ended=4, preempted=1)).factor == CUT
    assert after(look(preempted=3), look(ended=5, preempted=1)).factor == CUT * CUT


def test_budget_grows_after_a_generation_that_left_the_cache_half_empty() -> None:
    assert after(look(ended=9)).factor == 1
    assert after(look(ended=9), look(ended=1)).factor == MAX_RAISE
    assert 1.05 < after(look(ended=10, usage=0.8)).factor < 1.15


def test_budget_stays_where_nothing_says_that_it_is_too_small() -> None:
    assert after(look(ended=10, usage=0.96)).factor == 1
    assert after(look(ended=5, usage=0.96), look(ended=5)).factor == 1  # the peak counts
    assert after(look(ended=10, full=False)).factor == 1
    assert after(look(ended=10, usage=0)).factor == 1  # an engine that does not say


def test_cut_forgets_the_generation_before_it() -> None:
    assert after(look(ended=9), look(preempted=1), look(ended=1)).factor == CUT


@given(LOOKS)
def test_factor_stays_between_its_bounds(looks: list[Look]) -> None:
    overcommit = Overcommit()
    for each in looks:
        before, overcommit = overcommit, overcommit.after(each)
        assert MIN_FACTOR <= overcommit.factor <= MAX_FACTOR
        assert overcommit.factor <= before.factor * MAX_RAISE
        if each.num_preempted:
            assert overcommit.factor <= before.factor
