"""Test how many requests fit beside running ones, by hand and against a simulation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.worker.admission.projection import Course, num_fitting

COURSES = st.lists(st.builds(Course, st.integers(0, 50), st.integers(0, 50)), max_size=20)


@pytest.mark.parametrize(
    ("courses", "newcomer", "size", "expected"),
    [
        ([], Course(50, 50), 1000, 10),
        ([Course(0, 500)], Course(50, 50), 1000, 10),  # about to end
        ([Course(100, 400)], Course(50, 50), 1000, 5.5),  # 450 and a newcomer's 100
        ([Course(20, 400)], Course(50, 50), 1000, 580 / 70),  # tightest just before it ends
        ([Course(10, 950)], Course(50, 50), 1000, 40 / 60),
        ([Course(20, 990)], Course(50, 50), 1000, 0),
        ([Course(10, 0)] * 9, Course(0, 10), 100, 10),  # gone in the first step
    ],
)
def test_newcomers_fit_up_to_the_tightest_moment(
    courses: list[Course], newcomer: Course, size: float, expected: float
) -> None:
    assert num_fitting(courses, newcomer, size) == pytest.approx(expected)


def peak(courses: list[Course]) -> float:
    """Return the largest use, step by step; a request leaves after the step in which it ends."""
    steps = range(51)
    return max(
        sum(each.held + step for each in courses if each.remaining >= step) for step in steps
    )


@given(COURSES, st.builds(Course, st.integers(0, 50), st.integers(1, 50)), st.integers(1, 3000))
def test_what_fits_never_overflows_and_one_more_would(
    courses: list[Course], newcomer: Course, size: int
) -> None:
    fitting = num_fitting(courses, newcomer, size)
    assert fitting >= 0
    if peak(courses) <= size:
        assert peak(courses + [newcomer] * int(fitting + 1e-9)) <= size
        assert peak(courses + [newcomer] * (int(fitting + 1e-9) + 1)) > size
    elif fitting >= 1:  # a newcomer does not cause an overflow after its own end
        assert (
            peak([Course(*each) for each in courses if each.remaining > newcomer.remaining]) > size
        )
