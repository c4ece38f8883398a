import pytest

from gristmill.producer.batches.lifecycle.window import commit_interval_s, room


@pytest.mark.parametrize(
    ("num_outstanding", "num_in_flight", "finished_per_s", "expected"),
    [
        (0, 0, 0.0, 1024),  # an idle queue: the least that waits ahead
        (1024, 0, 0.0, 0),
        (1024, 500, 0.0, 500),  # more, as the workers hold requests
        (0, 0, 100.0, 6000),  # 60 s of a fast batch
        (0, 8000, 100.0, 8192),  # at most the largest window
        (9000, 0, 0.0, 0),
    ],
)
def test_the_window_holds_what_the_workers_run_and_60_s_ahead(
    num_outstanding: int, num_in_flight: int, finished_per_s: float, expected: int
) -> None:
    free = room(
        num_outstanding=num_outstanding, outstanding_bytes=0, num_in_flight=num_in_flight,
        finished_per_s=finished_per_s, max_requests=8192, max_bytes=1,
    )  # fmt: skip
    assert free == expected


def test_a_window_that_is_full_in_bytes_takes_nothing() -> None:
    free = room(
        num_outstanding=1, outstanding_bytes=100, num_in_flight=0, finished_per_s=0, max_requests=8192, max_bytes=100
    )  # fmt: skip
    assert free == 0


@pytest.mark.parametrize(
    ("age_s", "expected"), [(0, 1), (20, 1), (100, 5), (600, 30), (10_000, 30)]
)
def test_an_old_batch_is_committed_less_often(age_s: float, expected: float) -> None:
    assert commit_interval_s(age_s) == expected
