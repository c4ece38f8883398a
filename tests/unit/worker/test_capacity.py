"""Test how many places and tokens are kept for requests of the lane `high`, without a clock."""

import pytest
from admissions import record
from hypothesis import given
from hypothesis import strategies as st

from gristmill.worker.admission.capacity import Capacity, Demand, gulp_size, max_held
from gristmill.worker.admission.room import NO_ROOM, Admission
from gristmill.worker.engine.interface import EngineStats

DEEP = Demand(num_queued=100_000, num_workers=1)
PLAIN = Capacity(110, 100, 100_000, high_share=0.1)
GULPS = Capacity(110, 100, gulp=10, high_share=0.1)
BATCH, LIVE = record(10, 10), record(10, 10, priority="high")


def admission(capacity: Capacity, num_batch: int = 0, num_live: int = 0) -> Admission:
    account = Admission(capacity, EngineStats, 10**6)
    for each in [BATCH] * num_batch + [LIVE] * num_live:
        account.enter(each)
    return account


@pytest.mark.parametrize(
    ("capacity", "num_held", "num_kept"),
    [
        (Capacity(110, 100, 1000), 110, 0),  # a tenth waits in the engine
        (Capacity(110, 100, 1000, high_share=0.1), 100, 10),  # nothing waits in a kept place
        (Capacity(110, 100, 1000, high_share=0.001), 100, 1),  # rounded up
        (Capacity(110, 110, 1000, high_share=0.1), 110, 11),
        (Capacity(110, 100, 1000, high_share=0.5), 100, 50),
        (Capacity(64, 100, 1000, high_share=0.25), 64, 16),
        (Capacity(512, 512, high_share=0.25), 512, 128),  # a server of unknown size
        (Capacity(512, 512, gulp=32, high_share=0.25), 512, 128),
        (Capacity(3, 3, 1000, high_share=0.5), 3, 1),
        (Capacity(1, 1, 1000, high_share=0.5), 1, 0),  # the one place is for all
    ],
)
def test_kept_places(capacity: Capacity, num_held: int, num_kept: int) -> None:
    assert (max_held(capacity, DEEP), capacity.num_kept) == (num_held, num_kept)


@pytest.mark.parametrize(
    ("num_batch", "num_live", "num_for_all_lanes", "num_urgent"),
    [
        (0, 0, 90, 100),
        (80, 0, 10, 20),
        (90, 0, 0, 10),
        (90, 4, 0, 6),  # live requests use kept places
        (80, 4, 10, 16),
        (90, 10, 0, 0),
        (80, 15, 5, 5),  # more live requests than kept places take those of all
        (0, 100, 0, 0),
    ],
)
@pytest.mark.parametrize("capacity", [PLAIN, GULPS])
def test_claims_of_all_lanes_leave_the_free_kept_places(
    capacity: Capacity, num_batch: int, num_live: int, num_for_all_lanes: int, num_urgent: int
) -> None:
    account = admission(capacity, num_batch, num_live)
    num_free = account.room([], Demand(1, 1), 0).num_requests  # shallow: no gulp
    assert num_free == num_for_all_lanes
    assert account.urgent_room([], only_kept=False).num_requests == num_urgent


@pytest.mark.parametrize("capacity", [PLAIN, GULPS])
def test_gathered_requests_count_like_those_in_the_engine(capacity: Capacity) -> None:
    account = admission(capacity, 80)
    gathered = [BATCH] * 5 + [LIVE] * 4
    assert account.room(gathered, Demand(1, 1), 0).num_requests == 5
    assert account.urgent_room(gathered, only_kept=True).num_requests == 6
    assert account.urgent_room([LIVE] * 10, only_kept=True) == NO_ROOM


@pytest.mark.parametrize("capacity", [PLAIN, GULPS])
def test_urgent_claims_may_have_to_leave_the_places_held_back(capacity: Capacity) -> None:
    assert admission(capacity, 80, 4).urgent_room([], only_kept=True).num_requests == 6
    assert admission(capacity, 70, 10).urgent_room([], only_kept=True) == NO_ROOM


def test_a_live_request_that_ends_frees_its_kept_place() -> None:
    account = admission(PLAIN, 90, 9)
    leave = account.enter(LIVE)
    leave()
    assert account.room([], Demand(1, 1), 0).num_requests == 0
    assert account.urgent_room([], only_kept=True).num_requests == 1


def test_without_kept_places_and_gulps_no_claim_is_urgent() -> None:
    assert admission(Capacity(110, 100), 50).urgent_room([], only_kept=False) == NO_ROOM


def test_a_gulp_fits_beside_the_kept_places() -> None:
    assert gulp_size(Capacity(110, 100, gulp=100, high_share=0.1), DEEP, 0) == 90


TOKENS = Capacity(110, 100, 10_000, high_share=0.1)


def test_the_same_share_of_the_cache_is_kept() -> None:
    account = admission(TOKENS)
    assert account.room([], DEEP, 0).num_tokens == 9000
    for _ in range(17):
        account.enter(record(100, 400))
    assert account.room([], DEEP, 0).num_tokens == 500
    assert account.urgent_room([], only_kept=True).num_tokens == 1500
    live = record(100, 400, priority="high")
    assert account.room([live], DEEP, 0).num_tokens == 500  # from the kept tokens
    account.enter(live)
    assert account.room([], DEEP, 0).num_tokens == 500
    assert account.room([record(100, 400)], DEEP, 0).num_requests == 0
    assert account.urgent_room([record(100, 400)], only_kept=True).num_tokens == 500


def test_the_kept_tokens_hold_a_request_at_least() -> None:
    """A tenth of the cache would be too small for any of these requests."""
    account = admission(TOKENS)
    account.enter(record(1000, 1000))
    assert account.room([record(1000, 1000)] * 3, DEEP, 0).num_requests == 0
    assert account.urgent_room([record(1000, 1000)] * 3, only_kept=True).num_tokens == 2000


def test_a_cache_that_only_kept_tokens_leave_empty_is_full() -> None:
    """Otherwise the budget would grow until the kept tokens were promised too."""
    stats = EngineStats(kv_cache_usage=0.5, running=50)
    account = Admission(Capacity(440, 400, 10_000, high_share=0.5), lambda: stats, 10**6)
    leaves = [account.enter(record(50, 50)) for _ in range(50)]
    assert account.room([], DEEP, 0).num_requests == 0
    for leave in leaves:
        leave()
    assert account.room([], DEEP, 10).num_tokens == 5500  # by a tenth, not by a quarter


@given(
    st.integers(1, 300), st.integers(1, 300), st.floats(0, 0.5), st.sampled_from([1, None, 5]),
    st.integers(0, 300), st.integers(0, 300),
)  # fmt: skip
def test_batch_work_never_gets_a_kept_place(
    max_in_flight: int,
    max_num_seqs: int,
    share: float,
    gulp: int | None,
    num_batch: int,
    num_live: int,
) -> None:
    capacity = Capacity(max_in_flight, max_num_seqs, 10**7, gulp, share)
    account = admission(capacity, num_batch, num_live)
    num_free = account.room([], Demand(1, 1), 0).num_requests
    most = max(num_batch, capacity.max_running - max(num_live, capacity.num_kept))
    if num_free and capacity.num_kept:
        assert num_batch + num_free <= most
