"""Test which setups a bench compares."""

from gristmill.bench.setups import Setup, setups, worker_fields


def test_refills_multiply_continuous_alone() -> None:
    assert setups(["static", "continuous"], [], [8], [1, 64]) == [
        Setup("static", size=8),
        Setup("continuous", size=8, refill=1),
        Setup("continuous", size=8, refill=64),
    ]
    assert Setup("continuous", size=8, refill=64).label == "continuous, refill 64 x8"


def test_a_refill_is_a_setting_of_the_worker() -> None:
    assert worker_fields(Setup("continuous", refill=64), 512, 0)["refill"] == 64
    assert worker_fields(Setup("continuous"), 512, 0)["refill"] is None
