"""Test when a full engine is refilled in gulps, with tables and properties and without a clock."""

import pytest
from admissions import answered, record
from hypothesis import given
from hypothesis import strategies as st

from gristmill.worker.admission.capacity import Capacity, Demand, gulp_size
from gristmill.worker.admission.gulps import MAX_WAIT_S, gulp_share
from gristmill.worker.admission.room import NO_ROOM, UNBOUNDED, Admission, Room
from gristmill.worker.engine.interface import EngineStats

CAPACITY = Capacity(max_in_flight=110, max_num_seqs=100, gulp=10)
MAX_BYTES = 10**6
DEEP = Demand(num_queued=100_000, num_workers=1)


def admission(capacity: Capacity = CAPACITY, num_held: int = 0) -> Admission:
    account = Admission(capacity, EngineStats, MAX_BYTES)
    for _ in range(num_held):
        account.enter(record(100, 100))
    return account


@pytest.mark.parametrize(
    ("gulp", "demand", "mean_output_tokens", "expected"),
    [
        (10, DEEP, 0, 10),
        (1000, DEEP, 0, 100),  # at most what runs
        (None, DEEP, 0, 12),  # nothing has ended yet: an eighth
        (None, DEEP, 128, 12),  # an eighth is right for 128 output tokens
        (None, DEEP, 2048, 3),  # few end in a step: a small gulp
        (None, DEEP, 4, 25),  # many end in each step: at most a quarter
        (10, Demand(9, 1), 0, 1),  # shallow
        (10, Demand(10, 1), 0, 10),
        (10, Demand(199, 2), 0, 1),  # the other worker could run the rest
        (10, Demand(200, 2), 0, 10),
    ],
)
def test_size_of_a_gulp(
    gulp: int | None, demand: Demand, mean_output_tokens: float, expected: int
) -> None:
    assert gulp_size(Capacity(110, 100, gulp=gulp), demand, mean_output_tokens) == expected


@pytest.mark.parametrize(("num_queued", "expected"), [(7, 1), (8, 2)])
def test_a_small_setting_leaves_others_less_to_run(num_queued: int, expected: int) -> None:
    assert gulp_size(Capacity(4, 256, gulp=2), Demand(num_queued, 2), 0) == expected


@given(st.floats(0, 1e9))
def test_a_gulp_is_at_most_a_quarter_of_the_sequences(mean_output_tokens: float) -> None:
    assert 0 < gulp_share(mean_output_tokens) <= 0.25


def test_no_request_waits_in_the_engine() -> None:
    assert admission().room([], DEEP, 0)[:2] == (100, UNBOUNDED)
    assert admission(num_held=100).room([], DEEP, 0).num_requests == 0


def test_a_full_engine_waits_for_a_gulp_and_then_takes_all_of_it() -> None:
    account = admission(num_held=88)
    leaves = [account.enter(record(100, 100)) for _ in range(12)]
    for leave in leaves[:9]:
        leave()
        assert account.room([], DEEP, 0).num_requests == 0
    leaves[9]()
    assert account.room([], DEEP, 0) == Room(
        10, UNBOUNDED, account.room([], DEEP, 0).num_bytes, "gulp"
    )
    first = [record(100, 100)] * 6
    assert account.room(first, DEEP, 0)[:2] == (4, UNBOUNDED)
    leaves[10]()  # while the gulp fills: it waits for the next one
    assert account.room(first, DEEP, 0)[:2] == (4, UNBOUNDED)
    assert account.room([record(100, 100)] * 10, DEEP, 0).num_requests == 0


def test_a_place_waits_no_longer_than_the_bound() -> None:
    account = admission(num_held=97)
    assert account.room([], DEEP, 5.0).num_requests == 0
    assert account.room([], DEEP, 5.0 + MAX_WAIT_S - 0.01).num_requests == 0
    assert account.room([], DEEP, 5.0 + MAX_WAIT_S).num_requests == 3


def test_a_shallow_queue_never_waits() -> None:
    account = admission(num_held=97)
    assert account.room([], Demand(9, 1), 0).num_requests == 3
    assert account.room([], Demand(0, 1), 0).num_requests == 3


def test_a_gulp_that_a_queue_could_not_fill_is_over_once_the_queue_is_shallow() -> None:
    """A request of a "gulp" waits for one more claim, which finds nothing in a shallow queue."""
    account = admission()
    leaves = [account.enter(record(100, 100)) for _ in range(88)]
    assert account.room([], DEEP, 0).kind == "gulp"
    assert account.room([], Demand(9, 1), 0).kind == "plain"
    assert account.room([], DEEP, 0).kind == "gulp"  # another queue fills it
    for leave in leaves:
        leave()
    assert account.room([], Demand(1, 1), 0).kind == "plain"
    account.enter(record(100, 100))
    assert account.room([], Demand(1, 1), 0).kind == "plain"


def test_another_queue_that_is_shallow_begins_no_gulp() -> None:
    account = admission(num_held=97)
    assert account.room([], Demand(0, 1), 0).num_requests == 3
    assert account.room([], DEEP, 0).num_requests == 0


def test_urgent_requests_get_the_places_that_wait() -> None:
    assert admission(num_held=97).urgent_room([], only_kept=False)[:2] == (3, UNBOUNDED)
    assert admission(num_held=97).urgent_room([record(1, 1)] * 3, only_kept=False) == NO_ROOM
    assert admission(num_held=100).urgent_room([], only_kept=False) == NO_ROOM
    assert admission(Capacity(110, 100), num_held=97).urgent_room([], only_kept=False) == NO_ROOM
    lanes = Room(3, UNBOUNDED, MAX_BYTES, "urgent").lanes
    assert (lanes.high, lanes.normal, lanes.low) == (None, 0, 0)


def test_a_gulp_is_counted_in_tokens_if_the_cache_is_the_bound() -> None:
    """A gulp of ten in a hundred sequences is a tenth of the cache."""
    account = admission(Capacity(110, 100, 10_000, gulp=10))
    leaves = [account.enter(record(100, 400)) for _ in range(20)]
    assert account.room([], DEEP, 0).num_requests == 0
    leaves[0]()
    assert account.room([], DEEP, 0).num_requests == 0
    assert account.urgent_room([], only_kept=False)[:2] == (81, 500)
    leaves[1]()
    assert account.room([], DEEP, 0)[:2] == (82, 1000)


def test_a_full_cache_is_looked_at_again_in_time() -> None:
    account = admission(Capacity(110, 100, 10_000, gulp=10))
    leaves = [account.enter(record(100, 400)) for _ in range(20)]
    assert account.room([], DEEP, 1.0).num_requests == 0
    leaves[0]()
    assert account.room([], DEEP, 1.0 + MAX_WAIT_S).num_tokens == 500


def test_the_size_follows_the_outputs() -> None:
    account = admission(Capacity(512, 512, 10**7, gulp=None), num_held=449)
    assert account.room([], DEEP, 0).num_requests == 0  # 63 of 64 places
    for _ in range(1000):
        account.learn(record(100, 512), answered(100, 512))
    assert account.room([], DEEP, 0).num_requests == 63  # a sixteenth is enough now
