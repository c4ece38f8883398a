"""Deaths in a row, and the pauses between restarts."""

from gristmill.worker.death_count import MAX_DEATHS, DeathCount


def test_first_restart_does_not_wait_and_later_waits_grow_to_their_bound() -> None:
    deaths = DeathCount(backoff_base_s=1, backoff_max_s=4)
    deaths.add(has_settled=False)
    assert deaths.pause_s() == 0
    for _ in range(50):
        deaths.add(has_settled=False)
        assert 0 <= deaths.pause_s() <= 4


def test_result_in_between_starts_the_count_anew() -> None:
    deaths = DeathCount(1, 4)
    for _ in range(MAX_DEATHS):
        assert not deaths.is_hopeless
        deaths.add(has_settled=False)
    assert deaths.is_hopeless
    deaths.add(has_settled=True)
    assert (deaths.number, deaths.is_hopeless) == (1, False)
