"""The time slice of a job: when the job should end, and when it is overdue."""

import pytest

from gristmill.producer.steward import time_slice as module
from gristmill.producer.steward.time_slice import (
    ALARM_MARGIN_S,
    IDLE_S,
    MAX_RUN_S,
    SLICE_S,
    STOP_GRACE_S,
    TimeSlice,
)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(module, "time", found)
    return found


def test_a_job_goes_on_while_nobody_waits_and_makes_room_in_the_end(clock: Clock) -> None:
    time_slice = TimeSlice()
    time_slice.begin(MAX_RUN_S * 2)
    clock.now_s += MAX_RUN_S - 1
    assert time_slice.may_go_on()
    clock.now_s += 2
    assert not time_slice.may_go_on()


def test_a_job_has_its_slice_while_others_wait(clock: Clock) -> None:
    time_slice = TimeSlice()
    time_slice.num_waiting = 1
    time_slice.begin(MAX_RUN_S * 2)
    assert time_slice.may_go_on()
    clock.now_s += SLICE_S + 1
    assert not time_slice.may_go_on()


def test_a_job_without_anything_to_do_makes_room_at_once(clock: Clock) -> None:
    time_slice = TimeSlice()
    time_slice.begin(MAX_RUN_S * 2)
    assert time_slice.may_go_on(MAX_RUN_S)
    time_slice.num_waiting = 1
    assert time_slice.may_go_on(IDLE_S / 2)
    assert not time_slice.may_go_on(IDLE_S)


def test_a_signal_ends_the_slice_and_after_a_while_the_job(clock: Clock) -> None:
    time_slice = TimeSlice()
    time_slice.begin(MAX_RUN_S * 2)
    time_slice.stop()
    assert not time_slice.may_go_on()
    clock.now_s += STOP_GRACE_S - 1
    time_slice.stop()
    assert time_slice.overdue_s == pytest.approx(-1)
    clock.now_s += 2
    assert time_slice.overdue_s == pytest.approx(1)


def test_a_job_is_overdue_before_the_alarm_of_rq_and_only_while_it_runs(clock: Clock) -> None:
    time_slice = TimeSlice()
    assert time_slice.overdue_s < 0
    time_slice.begin(100)
    clock.now_s += 101 - ALARM_MARGIN_S
    assert time_slice.overdue_s == pytest.approx(1)
    time_slice.end()
    assert time_slice.overdue_s < 0
