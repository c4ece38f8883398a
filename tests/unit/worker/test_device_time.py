"""Device time is divided by tokens, and no device second is charged twice."""

import random
from dataclasses import dataclass

import pytest

from gristmill.worker.device_time import DeviceTime


@dataclass
class Engine:
    """Counts processed tokens, as an engine does."""

    num_tokens: int = 0

    def processed(self) -> int:
        return self.num_tokens


def test_request_alone_is_charged_all_the_time() -> None:
    engine = Engine()
    devices = DeviceTime(2, engine.processed)
    devices.enter(10.0)
    engine.num_tokens = 50
    assert devices.leave_answered(10.0, 50, 13.0) == 6000


def test_time_without_a_request_is_charged_to_nobody() -> None:
    engine = Engine()
    devices = DeviceTime(1, engine.processed)
    for start in (0.0, 100.0):
        devices.enter(start)
        engine.num_tokens += 5
        assert devices.leave_answered(start, 5, start + 1) == 1000


def test_requests_together_are_charged_by_tokens() -> None:
    engine = Engine()
    devices = DeviceTime(1, engine.processed)
    for _ in range(2):
        devices.enter(0.0)
    engine.num_tokens = 400
    assert devices.leave_answered(0.0, 100, 4.0) == 1000
    assert devices.leave_answered(0.0, 300, 4.0) == 3000


def test_running_request_keeps_what_its_tokens_took() -> None:
    """The long one has 300 tokens when the short one leaves, and pays for them later."""
    engine = Engine()
    devices = DeviceTime(1, engine.processed)
    devices.enter(0.0)
    devices.enter(0.0)
    engine.num_tokens = 400
    assert devices.leave_answered(0.0, 100, 2.0) == 500
    engine.num_tokens = 1000
    assert devices.leave_answered(0.0, 900, 5.0) == 4500


def test_aborted_request_takes_its_part_along() -> None:
    engine = Engine()
    devices = DeviceTime(1, engine.processed)
    devices.enter(0.0)
    devices.enter(0.0)
    engine.num_tokens = 200
    devices.leave_unanswered(0.0, 2.0)
    assert devices.leave_answered(0.0, 100, 2.0) == 1000


def test_request_after_an_aborted_one_does_not_pay_for_it() -> None:
    engine = Engine()
    devices = DeviceTime(8, engine.processed)
    devices.enter(0.0)
    engine.num_tokens = 100_000
    devices.leave_unanswered(0.0, 3600.0)
    devices.enter(3600.0)
    engine.num_tokens += 10
    assert devices.leave_answered(3600.0, 10, 3601.0) == 8000


def test_refusal_is_charged_nothing_and_takes_nothing() -> None:
    engine = Engine()
    devices = DeviceTime(1, engine.processed)
    devices.enter(0.0)
    devices.enter(1.0)
    assert devices.leave_answered(1.0, 0, 1.5) == 0
    engine.num_tokens = 7
    assert devices.leave_answered(0.0, 7, 2.0) == 2000


def test_engine_that_counts_nothing_shares_by_time() -> None:
    devices = DeviceTime(1, lambda: 0)
    devices.enter(0.0)
    devices.enter(2.0)
    assert devices.leave_answered(0.0, 50, 4.0) == 2666
    assert devices.leave_answered(2.0, 50, 4.0) == 1334


def test_restarted_engine_counts_from_zero() -> None:
    engine = Engine()
    devices = DeviceTime(1, engine.processed)
    devices.enter(0.0)
    engine.num_tokens = 1000
    devices.leave_unanswered(0.0, 5.0)
    engine.num_tokens = 0
    devices.enter(10.0)
    engine.num_tokens = 30
    assert devices.leave_answered(10.0, 30, 11.0) == 1000


def test_milliseconds_that_do_not_round_are_not_lost() -> None:
    engine = Engine()
    devices = DeviceTime(1, engine.processed)
    charged = 0
    for number in range(1000):
        devices.enter(float(number))
        engine.num_tokens += 1
        charged += devices.leave_answered(float(number), 1, number + 0.0004)
    assert charged == pytest.approx(400, abs=1)


@pytest.mark.parametrize("seed", range(20))
def test_charges_add_up_to_the_time_of_the_devices(seed: int) -> None:
    """Every request gets an answer: the sum is the busy time, whatever the order."""
    rng, engine, now_s, busy_s = random.Random(seed), Engine(), 0.0, 0.0
    devices, running, charged = DeviceTime(3, engine.processed), list[tuple[float, int]](), 0
    for _ in range(500):
        step_s = rng.random()
        now_s += step_s
        busy_s += step_s if running else 0.0
        if running:  # each has generated something since
            running = [(started_s, tokens + 5) for started_s, tokens in running]
            engine.num_tokens += 5 * len(running)
        if running and rng.random() < 0.5:
            started_s, tokens = running.pop(rng.randrange(len(running)))
            charged += devices.leave_answered(started_s, tokens, now_s)
        else:
            devices.enter(now_s)
            running.append((now_s, 0))
    while running:
        started_s, tokens = running.pop()
        charged += devices.leave_answered(started_s, tokens, now_s)
    assert charged / 1000 <= 3 * busy_s + 0.001
    assert charged / 1000 == pytest.approx(3 * busy_s, rel=1e-3)
