"""Test which failed tries count as attempts."""

from gristmill.worker.failed_tries import MAX_REQUESTS, MIN_REFUSALS, FailedTries

A, B = ("q", "a"), ("q", "b")


def counts(
    tries: FailedTries, key: tuple[str, str], now_s: float, is_refusal: bool = False
) -> bool:
    return tries.note(key, is_refusal=is_refusal, now_s=now_s).counts


def test_failures_count_once_others_were_served() -> None:
    tries = FailedTries(60)
    assert not counts(tries, A, 1)
    tries.note_served(2)
    assert counts(tries, A, 3)
    assert counts(tries, A, 4)  # the last of the queue ends too


def test_server_that_fails_for_everybody_costs_no_attempt() -> None:
    tries = FailedTries(60)
    tries.note_served(1)
    assert not any(counts(tries, key, now_s) for now_s in range(2, 99) for key in (A, B))


def test_known_failure_costs_no_attempt_in_a_later_outage() -> None:
    tries = FailedTries(60)
    counts(tries, A, 1)
    tries.note_served(2)
    assert not counts(tries, B, 3)  # B never failed while others were served
    assert not counts(tries, A, 4)
    tries.note_served(5)
    assert counts(tries, A, 6)


def test_only_several_refusals_over_a_longer_time_count_as_one_attempt() -> None:
    tries = FailedTries(60)
    counts(tries, A, 0, is_refusal=True)
    tries.note_served(1)
    assert not any(counts(tries, A, now_s, is_refusal=True) for now_s in range(2, 60))
    assert counts(tries, A, 60, is_refusal=True)
    assert not any(counts(tries, A, 200, is_refusal=True) for _ in range(MIN_REFUSALS - 1))
    assert counts(tries, A, 200, is_refusal=True)


def test_number_grows_until_the_request_is_forgotten() -> None:
    tries = FailedTries(60)
    numbers = [tries.note(A, is_refusal=True, now_s=1).number for _ in range(3)]
    tries.forget(A)
    assert [*numbers, tries.note(A, is_refusal=True, now_s=1).number] == [1, 2, 3, 1]


def test_memory_is_bounded_and_forgets_the_oldest() -> None:
    tries = FailedTries(60)
    for number in range(MAX_REQUESTS + 1):
        tries.note(("q", str(number)), is_refusal=False, now_s=1)
    assert tries.note(("q", "1"), is_refusal=False, now_s=1).number == 2
    assert tries.note(("q", "0"), is_refusal=False, now_s=1).number == 1
