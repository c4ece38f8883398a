"""Test when failures brake a worker, and what ends the brake."""

from itertools import cycle

import pytest

from gristmill.worker.failure_brake import (
    MIN_OUTCOMES,
    NUM_TRIES,
    WINDOW,
    WINDOW_S,
    Change,
    FailureBrake,
    Outcome,
    Source,
    cause_of,
    counts_for,
    is_mixed,
)
from gristmill.worker.failures import Failure

BROKEN = Failure("500 InternalServerError", may_be_own=False, message="no space")
OTHER = Failure("502 TimeoutError", may_be_own=False, message="")
BAD = Failure("400 BadRequestError", may_be_own=True, message="")
LOST = Failure("404 NotFoundError", may_be_own=True, message="")
A = Source("q", "team-a", "file-1")
B = A._replace(tenant="team-b")
FILES = (A, A._replace(batch="file-2"), A._replace(batch="file-3"))


def outcomes(
    *parts: tuple[int, Failure | None], sources: tuple[Source, ...] = (A,)
) -> list[Outcome]:
    """Return the given numbers of outcomes, from the sources in turns."""
    turns = cycle(sources)
    return [Outcome(0.0, next(turns), failure) for number, failure in parts for _ in range(number)]


@pytest.mark.parametrize(
    ("parts", "brakes"),
    [
        ([(20, BROKEN)], True),
        ([(19, BROKEN)], False),  # too few
        ([(1, None), (19, BROKEN)], True),  # 95 %
        ([(2, None), (30, BROKEN)], False),
        ([(1, None), (31, BROKEN)], True),
        ([(2, OTHER), (30, BROKEN)], True),  # kinds do not matter
        ([(2, BAD), (30, BROKEN)], False),
        ([(32, None)], False),
        ([], False),
    ],
)
def test_broken_engine_fails_nearly_always(
    parts: list[tuple[int, Failure | None]], brakes: bool
) -> None:
    cause = cause_of(outcomes(*parts))
    assert (cause is not None) is brakes
    if cause:
        assert cause.failure == BROKEN
        assert cause.num_outcomes == sum(number for number, _ in parts)


@pytest.mark.parametrize(
    ("parts", "sources", "brakes"),
    [
        ([(32, BAD)], (A,), False),  # one bad file
        ([(32, BAD)], (A, B), True),
        ([(19, BAD)], (A, B), False),
        ([(1, None), (31, BAD)], (A, B), False),  # somebody was served
        ([(1, LOST), (31, BAD)], (A, B), True),
        ([(1, BROKEN), (31, BAD)], (A, B), True),
        ([(32, BAD)], FILES[:2], False),  # two bad files of one script
        ([(32, BAD)], FILES, True),
        ([(32, BAD)], (A,) * 31 + (B,), False),  # a bad file and one stray request
        ([(32, BAD)], (A, A, A, B), True),  # weights 3 and 1
    ],
)
def test_bad_requests_close_it_only_if_all_of_a_mixed_load_fail(
    parts: list[tuple[int, Failure | None]], sources: tuple[Source, ...], brakes: bool
) -> None:
    assert (cause_of(outcomes(*parts, sources=sources)) is not None) is brakes


@pytest.mark.parametrize("field", ["queue", "tenant"])
def test_two_queues_or_tenants_are_mixed(field: str) -> None:
    other = A._replace(**{field: "another"})
    assert is_mixed([A, other])
    assert not is_mixed([A, A])
    assert not is_mixed([A, A, A, A, other])


def test_three_batches_are_mixed() -> None:
    assert is_mixed(FILES)
    assert not is_mixed(FILES[:2])
    assert not is_mixed([*FILES, FILES[0]])


@pytest.mark.parametrize(
    ("failure", "cause", "expected"),
    [(BROKEN, OTHER, True), (BAD, BROKEN, False), (LOST, BAD, True), (BROKEN, BAD, True)],
)
def test_what_can_have_the_same_cause(failure: Failure, cause: Failure, expected: bool) -> None:
    assert counts_for(failure, cause) is expected


class Worker:
    """Feeds a brake with outcomes; the clock stands still unless told."""

    def __init__(self) -> None:
        self.brake = FailureBrake(1.0, 60.0)
        self.now_s = 100.0

    def run(self, number: int, failure: Failure | None, source: Source = A) -> list[Change | None]:
        outcome = Outcome(self.now_s, source, failure)
        return [self.brake.note(outcome, self.now_s) for _ in range(number)]

    def braked(self, failure: Failure = BROKEN) -> "Worker":
        for source in [A, B] * 16:
            self.run(1, failure, source)
        assert self.brake.cause
        return self

    def attempt(self, failure: Failure | None, source: Source = A) -> Change | None:
        """Wait for the next try, and let it end at once."""
        while not self.brake.may_try(self.now_s):
            self.now_s += 0.25
        self.brake.begin_try(self.now_s)
        return self.brake.note_try(Outcome(self.now_s, source, failure))


def test_it_brakes_once_at_the_last_outcome_needed() -> None:
    changes = Worker().run(MIN_OUTCOMES + 5, BROKEN)
    assert changes == [None] * (MIN_OUTCOMES - 1) + ["braked"] + [None] * 5


def test_a_well_worker_loses_at_most_a_window() -> None:
    worker = Worker()
    worker.run(1000, None)
    assert worker.run(WINDOW, BROKEN).index("braked") < WINDOW


def test_slow_failures_do_not_close_it() -> None:
    worker = Worker()
    for _ in range(100):
        assert worker.run(1, BROKEN) == [None]
        worker.now_s += WINDOW_S / (MIN_OUTCOMES - 2)


def test_pauses_grow_from_the_first_to_the_longest() -> None:
    worker = Worker().braked()
    moments = []
    for _ in range(9):
        worker.attempt(BROKEN)
        moments.append(worker.now_s - 100)
    pauses = [after - before for before, after in zip([0, *moments], moments, strict=False)]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_pause_runs_from_the_end_of_a_try() -> None:
    worker = Worker().braked()
    worker.now_s += 1
    worker.brake.begin_try(worker.now_s)
    worker.brake.note_try(Outcome(worker.now_s + 50, A, BROKEN))
    assert not worker.brake.may_try(worker.now_s + 51.9)
    assert worker.brake.may_try(worker.now_s + 52)


def test_first_success_ends_it_and_the_count_begins_anew() -> None:
    worker = Worker().braked()
    assert worker.attempt(BROKEN) is None
    assert worker.attempt(None) == "succeeded"
    assert worker.brake.cause is None
    assert worker.run(MIN_OUTCOMES - 1, BROKEN) == [None] * (MIN_OUTCOMES - 1)
    assert worker.run(1, BROKEN) == ["braked"]
    assert worker.brake.pause_s == 1


def test_what_ran_before_a_change_counts_no_more() -> None:
    worker = Worker().braked()
    claimed_at_s = worker.now_s
    worker.attempt(None)
    late = Outcome(worker.now_s, A, BROKEN)
    assert [worker.brake.note(late, claimed_at_s) for _ in range(100)] == [None] * 100


def test_success_of_an_older_run_does_not_open_it() -> None:
    worker = Worker().braked()
    worker.run(10, None)
    assert worker.brake.cause


def test_tries_that_fail_otherwise_open_it() -> None:
    """The engine is well again, and a bad file comes first."""
    worker = Worker().braked()
    assert [worker.attempt(BAD) for _ in range(NUM_TRIES)] == [None] * 4 + ["disproved"]


def test_bad_requests_of_one_source_open_it() -> None:
    worker = Worker().braked(BAD)
    assert [worker.attempt(BAD) for _ in range(NUM_TRIES)] == [None] * 4 + ["disproved"]


def test_bad_requests_of_a_mixed_load_keep_it_braked() -> None:
    worker = Worker().braked(BAD)
    assert [worker.attempt(BAD, source) for source in [A, B] * 20] == [None] * 40


def test_broken_engine_with_one_source_keeps_it_braked() -> None:
    worker = Worker().braked()
    assert [worker.attempt(BROKEN) for _ in range(40)] == [None] * 40


def test_try_that_never_reached_the_engine_costs_no_pause() -> None:
    worker = Worker().braked()
    worker.now_s += 1
    worker.brake.begin_try(worker.now_s)
    worker.brake.void_try(worker.now_s)
    assert worker.brake.may_try(worker.now_s)
    assert worker.brake.pause_s == 1


def test_restart_of_the_engine_allows_a_try_at_once() -> None:
    worker = Worker().braked()
    for _ in range(5):
        worker.attempt(BROKEN)
    worker.brake.forget(worker.now_s)
    assert worker.brake.cause
    assert worker.brake.may_try(worker.now_s)
    assert worker.brake.pause_s == 1
