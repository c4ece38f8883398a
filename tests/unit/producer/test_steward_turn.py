"""When a job makes room, and when it is cut off."""

import pytest

from gristmill.producer.steward import turn as module
from gristmill.producer.steward.turn import (
    ALARM_MARGIN_S,
    IDLE_S,
    MAX_RUN_S,
    SLICE_S,
    STOP_GRACE_S,
    Turn,
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
    turn = Turn()
    turn.begin(MAX_RUN_S * 2)
    clock.now_s += MAX_RUN_S - 1
    assert turn.may_go_on()
    clock.now_s += 2
    assert not turn.may_go_on()


def test_a_job_has_its_slice_while_others_wait(clock: Clock) -> None:
    turn = Turn()
    turn.num_waiting = 1
    turn.begin(MAX_RUN_S * 2)
    assert turn.may_go_on()
    clock.now_s += SLICE_S + 1
    assert not turn.may_go_on()


def test_a_job_without_anything_to_do_makes_room_at_once(clock: Clock) -> None:
    turn = Turn()
    turn.begin(MAX_RUN_S * 2)
    assert turn.may_go_on(MAX_RUN_S)
    turn.num_waiting = 1
    assert turn.may_go_on(IDLE_S / 2)
    assert not turn.may_go_on(IDLE_S)


def test_a_signal_ends_the_slice_and_after_a_while_the_job(clock: Clock) -> None:
    turn = Turn()
    turn.begin(MAX_RUN_S * 2)
    turn.stop()
    assert not turn.may_go_on()
    clock.now_s += STOP_GRACE_S - 1
    turn.stop()
    assert turn.overdue_s == pytest.approx(-1)
    clock.now_s += 2
    assert turn.overdue_s == pytest.approx(1)


def test_a_job_is_overdue_before_the_alarm_of_rq_and_only_while_it_runs(clock: Clock) -> None:
    turn = Turn()
    assert turn.overdue_s < 0
    turn.begin(100)
    clock.now_s += 101 - ALARM_MARGIN_S
    assert turn.overdue_s == pytest.approx(1)
    turn.end()
    assert turn.overdue_s < 0
