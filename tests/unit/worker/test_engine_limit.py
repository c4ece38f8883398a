"""Test how many requests a worker starts on an engine that fails or refuses some."""

import math

from gristmill.worker.engine_limit import HAND_BACK_PAUSE_S, STEP_S, EngineLimit


def a_limit() -> EngineLimit:
    return EngineLimit(float)  # pauses of 1, 2, 3, ... s


def post(limit: EngineLimit, *names: str, at_s: float) -> None:
    for name in names:
        limit.enter(name, at_s)


def fail(limit: EngineLimit, *names: str, at_s: float, is_refusal: bool = False) -> None:
    for name in names:
        limit.note_failed(name, is_refusal=is_refusal, now_s=at_s)
        limit.leave(name)


def test_there_is_no_limit_without_failures() -> None:
    assert a_limit().num_free(1000, 0) == math.inf


def test_failures_of_one_round_pause_claims_once() -> None:
    limit = a_limit()
    post(limit, "a", "b", at_s=0)
    fail(limit, "a", at_s=1)
    fail(limit, "b", at_s=1.5)
    assert (limit.num_free(0, 1.9), limit.num_free(0, 2)) == (0, math.inf)


def test_each_round_pauses_longer_until_a_success() -> None:
    limit = a_limit()
    for at_s, pause_s in ((0, 1), (10, 2), (20, 3)):
        post(limit, "a", at_s=at_s)
        fail(limit, "a", at_s=at_s)
        assert limit.num_free(0, at_s + pause_s - 0.1) == 0
        assert limit.num_free(0, at_s + pause_s) > 0
    post(limit, "a", "b", at_s=30)
    fail(limit, "a", at_s=30)
    limit.note_served()
    assert limit.num_free(0, 30) > 0


def test_refusal_limits_to_what_the_engine_held_and_then_grows() -> None:
    limit = a_limit()
    post(limit, *map(str, range(16)), at_s=0)
    post(limit, "refused", at_s=1)
    fail(limit, "refused", at_s=1.1, is_refusal=True)
    limit.note_served()
    assert limit.num_free(16, 1.1) == 0
    assert limit.num_free(15, 1.1) == 1
    later = [limit.num_free(16, 1.2 + number * STEP_S) for number in (1, 2, 4)]
    assert later == [1, 8, 64]


def test_requests_that_may_be_refused_too_are_not_held() -> None:
    """Sixteen bad requests that start together say nothing of how many the engine takes."""
    limit = a_limit()
    names = [str(number) for number in range(16)]
    post(limit, *names, at_s=0)
    fail(limit, *names, at_s=0.1, is_refusal=True)
    assert limit.num_free(0, 2) == math.inf


def test_claims_pause_after_a_hand_back_until_a_success() -> None:
    limit = a_limit()
    limit.note_handed_back(1)
    assert limit.num_free(0, 1 + HAND_BACK_PAUSE_S - 0.01) == 0
    assert limit.num_free(0, 1 + HAND_BACK_PAUSE_S) == math.inf
    limit.note_handed_back(5)
    limit.note_served()
    assert limit.num_free(0, 5) == math.inf


def test_failure_that_is_no_refusal_sets_no_limit() -> None:
    limit = a_limit()
    post(limit, "runs", at_s=0)
    post(limit, "fails", at_s=10)
    fail(limit, "fails", at_s=11)
    assert limit.num_free(1, 12) == math.inf
