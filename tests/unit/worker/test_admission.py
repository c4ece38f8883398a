"""Test how much the engine has room for, with tables and properties and without a clock."""

import json
from collections.abc import Callable

import pytest
from admissions import answered, record
from hypothesis import given
from hypothesis import strategies as st

from gristmill.shared.request import Request
from gristmill.worker.admission.capacity import Capacity, Demand, free_places, max_held, refill
from gristmill.worker.admission.room import UNBOUNDED, Admission
from gristmill.worker.engine.interface import EngineStats

CAPACITY = Capacity(max_in_flight=110, max_num_seqs=100, kv_cache_tokens=10_000)
MAX_BYTES = 1000
DEEP = Demand(num_queued=100_000, num_workers=1)

CAPACITIES = st.builds(Capacity, st.integers(1, 5000), st.integers(1, 4096), st.integers(0, 10**6))
DEMANDS = st.builds(Demand, st.integers(0, 10**7), st.integers(0, 1000))


@pytest.mark.parametrize(
    ("num_held", "num_waiting", "demand", "expected"),
    [
        (0, 0, DEEP, 110),
        (0, 99, DEEP, 110),  # its counters lag: nothing is held, so nothing waits
        (50, 0, DEEP, 60),
        (110, 0, DEEP, 0),  # the engine is full
        (106, 0, DEEP, 0),  # fewer than a twentieth free: wait for more
        (105, 0, DEEP, 5),
        (106, 0, Demand(2, 1), 4),  # few wait: each place at once
        (50, 11, DEEP, 0),  # what the engine has waits in it
        (50, 10, DEEP, 60),
        (95, 0, Demand(50, 2), 5),  # near the end: none waits in here
        (100, 0, Demand(50, 2), 0),
        (100, 0, Demand(50, 1), 10),  # nobody else could run it
        (100, 0, Demand(100_000, 2), 10),
    ],
)
def test_places_are_for_what_runs_at_once_and_a_little_more(
    num_held: int, num_waiting: int, demand: Demand, expected: int
) -> None:
    assert free_places(CAPACITY, num_held, demand, num_waiting) == expected


@pytest.mark.parametrize("kv_cache_tokens", [0, 10_000])
def test_setting_is_a_ceiling(kv_cache_tokens: int) -> None:
    roomy = Capacity(1000, 100, kv_cache_tokens)
    assert free_places(roomy, 100, DEEP, 0) == 10
    assert free_places(roomy, 100, Demand(50, 2), 0) == 0


@given(CAPACITIES, st.integers(0, 6000), DEMANDS, st.integers(0, 5000))
def test_places_are_never_above_the_ceiling_nor_negative(
    capacity: Capacity, num_held: int, demand: Demand, num_waiting: int
) -> None:
    free = free_places(capacity, num_held, demand, num_waiting)
    assert free >= 0
    assert free == 0 or num_held + free <= capacity.max_in_flight
    assert free >= 1 or num_held  # an idle engine always takes one


@given(CAPACITIES, DEMANDS)
def test_limit_and_refill_leave_something_to_claim(capacity: Capacity, demand: Demand) -> None:
    assert 1 <= max_held(capacity, demand) <= capacity.max_in_flight
    assert 1 <= refill(capacity, demand) <= max(1, capacity.max_in_flight // 20)
    assert demand.fair_part >= 1
    assert demand.fair_part * max(1, demand.num_workers) >= demand.num_queued


class Engine:
    """An engine whose counters a test sets."""

    stats = EngineStats()


def admission(capacity: Capacity = CAPACITY) -> tuple[Admission, Engine]:
    engine = Engine()
    return Admission(capacity, lambda: engine.stats, MAX_BYTES), engine


def test_what_goes_in_and_what_is_gathered_is_promised() -> None:
    account, _ = admission()
    assert account.room([], DEEP, 0).num_tokens == 10_000
    leaves = [account.enter(record(100, 400)) for _ in range(10)]
    assert account.room([], DEEP, 0).num_tokens == 5000
    assert account.room([record(100, 400)] * 2, DEEP, 0).num_tokens == 4000
    for leave in leaves[:2]:
        leave()
    assert account.room([], DEEP, 0).num_tokens == 6000


def test_nothing_is_claimed_that_does_not_fit() -> None:
    """A claim always gets its first request, so the room must hold at least one."""
    account, _ = admission()
    for _ in range(19):
        account.enter(record(100, 400))
    assert account.room([], DEEP, 0).num_tokens == 500
    account.enter(record(100, 400))
    assert account.room([], DEEP, 0)[:2] == (0, 0)


def test_bodies_in_the_engine_and_gathered_take_the_workers_memory() -> None:
    account, _ = admission()
    large = record(1, 1, b"x" * 400)
    leave = account.enter(large)
    assert account.room([large], DEEP, 0).num_bytes == MAX_BYTES - 800
    # One more always fits, so the sum may exceed the limit.
    assert account.room([large] * 2, DEEP, 0).num_bytes == 0
    leave()
    assert account.room([], DEEP, 0).num_bytes == MAX_BYTES


def test_what_will_have_ended_makes_room_for_what_is_still_short() -> None:
    """Eighteen requests are near their ends, so new ones are still short when those leave."""
    account, engine = admission()
    for _ in range(18):
        account.enter(record(100, 400))
    assert account.room([], DEEP, 0).num_tokens == 1000
    engine.stats = EngineStats(running=18, output_tokens=18 * 390)
    assert 1000 * 490 / 110 <= account.room([], DEEP, 0).num_tokens <= 5000


def test_requests_that_end_early_make_room_for_more() -> None:
    account, _ = admission()
    for _ in range(400):
        account.learn(record(100, 4000), answered(100, 50))
    account.enter(record(100, 4000))
    room = account.room([], DEEP, 0)
    assert room.num_requests == 109
    assert 60 < room.num_tokens / 4100 < 80  # of the headers' tokens: 66 requests of 150 fill it


def test_prompts_found_in_the_prefix_cache_take_no_room_of_their_own() -> None:
    account, _ = admission()
    for _ in range(400):
        account.learn(record(1000, 10), answered(1000, 10, cached_tokens=990))
    assert account.room([], DEEP, 0).num_tokens > 10_000 * 1010 / 20 * 0.8


def test_storm_shrinks_the_budget_and_a_new_engine_counts_from_zero() -> None:
    account, engine = admission()
    for _ in range(4):
        account.enter(record(100, 100))
    engine.stats = EngineStats(running=4, preemptions=4)
    assert account.room([], DEEP, 0).num_tokens == 8500 - 800
    engine.stats = EngineStats(running=4, preemptions=0)
    assert account.room([], DEEP, 0).num_tokens == 8500 - 800


def test_engine_that_tells_no_cache_is_fed_by_counts_alone() -> None:
    """Such an engine is a server behind a URL."""
    account, _ = admission(Capacity(max_in_flight=10, max_num_seqs=256))
    leaves = [account.enter(record(10**6, 10**6)) for _ in range(9)]
    assert account.room([], Demand(1, 1), 0)[:2] == (1, UNBOUNDED)
    account.learn(record(1, 1), answered(1, 1))
    leaves[0]()
    assert account.room([], Demand(1, 1), 0)[:2] == (2, UNBOUNDED)


def test_header_out_of_all_proportion_counts_as_a_full_cache() -> None:
    account, _ = admission()
    account.learn(record(1, 10**15), answered(1, 1))
    leave = account.enter(record(1, 10**15))
    assert account.room([], DEEP, 0)[:2] == (0, 0)
    leave()
    assert account.room([], DEEP, 0).num_requests == 110


@given(
    CAPACITIES,
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=30),
    st.lists(
        st.builds(
            EngineStats,
            running=st.integers(0, 100),
            waiting=st.integers(0, 100),
            kv_cache_usage=st.floats(0, 1),
            output_tokens=st.integers(0, 10**6),
            preemptions=st.integers(0, 100),
        ),
        max_size=30,
    ),
)
def test_no_history_keeps_an_idle_engine_from_a_request(
    capacity: Capacity, shapes: list[tuple[int, int]], looks: list[EngineStats]
) -> None:
    account, engine = admission(capacity)
    leaves: list[Callable[[], None]] = []
    for shape, stats in zip(shapes, looks, strict=False):
        engine.stats = stats
        room = account.room([], DEEP, 0)
        assert (room.num_requests > 0) == (room.num_tokens > 0)
        assert len(leaves) + room.num_requests <= max(len(leaves), capacity.max_in_flight)
        leaves.append(account.enter(record(*shape)))
        account.learn(record(*shape), answered(shape[1], shape[0]))
    for leave in leaves:
        leave()
    assert account.room([], Demand(), 0).num_requests > 0
    assert account.room([], Demand(), 0).num_tokens > 0


def test_each_of_several_outputs_counts() -> None:
    body = {"prompt": "x", "max_tokens": 100, "n": 3}
    assert Request.from_body(body).max_tokens == 300
    assert Request.from_body(body | {"n": "3"}).max_tokens == 100
    assert Request.from_body(json.loads('{"prompt": "x", "n": 2}')).max_tokens == 512
