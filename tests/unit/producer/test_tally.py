from collections import Counter

from gristmill.producer.commands.tally import RATE_WINDOW_S, Tally
from gristmill.shared.results import Result

STATES = Counter({"running": 2, "queued": 3, "delayed": 1})


def finished(tokens: int, status: str = "succeeded", at_ms: int = 0) -> Result:
    usage = {"usage": {"completion_tokens": tokens, "prompt_tokens": 1}}
    return Result("a", status, "", 1, 0, at_ms, 200, usage, None, None, "")  # type: ignore[arg-type]


def test_cut_answers_are_counted_with_their_copies_and_those_of_earlier_processes() -> None:
    tally = Tally(10, 100.0, num_finished=3, num_cut=2)
    body = {"choices": [{"finish_reason": "length"}]}
    cut = Result("a", "succeeded", "", 1, 0, 0, 200, body, None, None, "")
    tally.add(cut)
    tally.add(cut, num_copies=2)
    tally.add(finished(50))
    assert tally.num_cut == 6


def test_nothing_is_promised_before_anything_finished() -> None:
    tally = Tally(10, 100.0)
    tally.sample(101.0)
    assert tally.remaining_s() is None
    assert tally.progress(STATES).line == "0/10 finished (0 failed), 2 in flight, 4 waiting"


def test_rates_and_time_left_come_from_what_finished() -> None:
    tally = Tally(10, 100.0)
    for status in ("succeeded", "failed"):
        tally.add(finished(50, status))
    tally.sample(104.0)
    assert tally.rates() == (0.5, 25.0)
    assert tally.progress(STATES).line == (
        "2/10 finished (1 failed), 2 in flight, 4 waiting, 25 tok/s, 0:00:16 left"
    )


def test_rows_of_an_earlier_process_count_as_finished_but_not_as_speed() -> None:
    tally = Tally(1_000, 0.0, num_finished=500, num_failed=5)
    tally.add(finished(10))
    tally.sample(1.0)
    assert tally.rates()[0] == 1.0
    assert tally.remaining_s() == 499.0


def test_lines_that_no_worker_saw_promise_nothing() -> None:
    tally = Tally(10, 100.0)
    tally.add_bad_line()
    tally.sample(101.0)
    assert tally.progress().line == "1/10 finished (1 failed without running)"
    tally.add(finished(1, "failed"))
    assert tally.progress().line == "2/10 finished (2 failed)"


def test_rates_forget_what_is_longer_ago_than_the_window() -> None:
    tally = Tally(100, 0.0)
    for _ in range(10):
        tally.add(finished(1))
    tally.sample(1.0)
    for second in range(2, int(RATE_WINDOW_S) + 10):
        tally.sample(float(second))
    assert tally.rates() == (0.0, 0.0)


def test_a_body_without_usage_counts_no_tokens() -> None:
    tally = Tally(3, 0.0)
    for body in (None, {}, {"usage": None}):
        tally.add(Result("a", "succeeded", "", 1, 0, 0, 200, body, None, None, ""))
    assert (tally.num_finished, tally.output_tokens) == (3, 0)


def test_what_had_finished_before_this_process_is_part_of_no_rate() -> None:
    """Regression: a resumed run reported 24,749 tok/s, since it counted earlier results."""
    tally = Tally(20, 100.0)
    tally.begin_ms = 5_000
    for at_ms in (4_000, 4_999):
        tally.add(finished(1_000, at_ms=at_ms))
    tally.sample(100.5)
    assert tally.rates() == (0.0, 0.0)
    assert tally.summary(100.5) == (
        "2 had finished before, 0 finished in 0.5 s, 0 of 20 failed; 0 output tokens"
    )
    tally.add(finished(30, at_ms=5_000))
    tally.sample(102.0)
    assert tally.rates() == (0.5, 15.0)
    assert tally.remaining_s() == 34.0
    assert tally.output_tokens == 2_030
    assert tally.summary(102.0) == (
        "2 had finished before, 1 finished in 2.0 s, 0 of 20 failed; 30 output tokens, 15 tok/s"
    )


def test_tokens_of_earlier_answers_are_part_of_no_rate() -> None:
    tally = Tally(20, 100.0, num_finished=10, output_tokens=5_000)
    tally.num_finished, tally.output_tokens = 12, 5_060
    tally.sample(102.0)
    assert tally.rates() == (1.0, 30.0)


def test_a_stall_does_not_make_the_time_left_longer() -> None:
    tally = Tally(100, 0.0)
    for second in range(1, 41):
        tally.add(finished(1))
        tally.sample(float(second))
    before = tally.remaining_s()
    assert before == 60.0
    tally.sample(40 + RATE_WINDOW_S)
    assert tally.remaining_s() == before
    tally.sample(41 + RATE_WINDOW_S)
    assert tally.remaining_s() is None


def test_without_a_worker_nothing_is_promised_and_rates_begin_anew_with_one() -> None:
    tally = Tally(10, 0.0)
    tally.add(finished(10))
    tally.sample(1.0)
    tally.sample(2.0, is_served=False)
    states = Counter({"orphaned": 3, "queued": 6})
    assert tally.progress(states).line == (
        "1/10 finished (0 failed), 3 held by a dead worker, 0 in flight, 6 waiting, no worker is alive"
    )
    tally.sample(100.0)
    assert tally.remaining_s() is None
    tally.add(finished(10))
    tally.sample(102.0)
    assert tally.rates() == (0.5, 5.0)
