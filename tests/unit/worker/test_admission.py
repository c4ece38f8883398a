"""What the engine has room for: tables and properties, no clock."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.shared.records import Record, request_from_body
from gristmill.worker.admission import (
    NO_ROOM,
    UNBOUNDED,
    Admission,
    Capacity,
    Demand,
    Load,
    ceiling,
    refill,
    room_for,
)
from gristmill.worker.engine.interface import EngineStats, Response

CAPACITY = Capacity(max_in_flight=110, max_num_seqs=100, kv_cache_tokens=10_000)
DEEP = Demand(num_queued=100_000, num_workers=1)

CAPACITIES = st.builds(Capacity, st.integers(1, 5000), st.integers(1, 4096), st.integers(0, 10**7))
DEMANDS = st.builds(Demand, st.integers(0, 10**7), st.integers(0, 1000))
LOADS = st.integers(0, 6000).flatmap(
    lambda number: st.builds(Load, st.just(number), st.floats(0, number * 1e6))
)


def record(prompt_tokens: int, max_tokens: int) -> Record:
    header = f"1|0|0|default|normal|d||{prompt_tokens}|{max_tokens}|3||/v1/completions|||"
    return Record.parse(header.encode() + b"\n\n{}")


@pytest.mark.parametrize(
    ("num_requests", "tokens", "num_waiting", "demand", "expected"),
    [
        (0, 0, 0, DEEP, (110, 10_000)),
        (50, 5000, 0, DEEP, (60, 5000)),
        (110, 5000, 0, DEEP, (0, 0)),  # the ceiling
        (106, 5000, 0, DEEP, (0, 0)),  # fewer than a twentieth free: wait for more
        (105, 5000, 0, DEEP, (5, 5000)),
        (106, 5000, 0, Demand(2, 1), (4, 5000)),  # few wait: each place at once
        (50, 5000, 11, DEEP, (0, 0)),  # what the engine has waits in it
        (50, 5000, 10, DEEP, (60, 5000)),
        (50, 9900, 0, DEEP, (0, 0)),  # less is free than one request takes
        (50, 9800, 0, DEEP, (60, 200)),
        (1, 9000, 0, DEEP, (0, 0)),
        (95, 5000, 0, Demand(50, 2), (5, 5000)),  # near the end: none waits in here
        (100, 5000, 0, Demand(50, 2), (0, 0)),
        (100, 5000, 0, Demand(50, 1), (10, 5000)),  # nobody else could run it
        (100, 5000, 0, Demand(100_000, 2), (10, 5000)),
    ],
)
def test_room_is_what_runs_at_once_and_a_little_more(
    num_requests: int, tokens: int, num_waiting: int, demand: Demand, expected: tuple[int, int]
) -> None:
    load = Load(num_requests, tokens)
    room = room_for(CAPACITY, load, demand, num_waiting=num_waiting, budget=10_000)
    assert (room.num_requests, room.num_tokens) == expected


@given(CAPACITIES, LOADS, DEMANDS, st.integers(0, 5000), st.floats(0, 1e8))
def test_room_is_never_above_the_ceiling_nor_negative(
    capacity: Capacity, load: Load, demand: Demand, num_waiting: int, budget: float
) -> None:
    room = room_for(capacity, load, demand, num_waiting=num_waiting, budget=budget)
    assert room.num_requests >= 0
    assert room == NO_ROOM or load.num_requests + room.num_requests <= capacity.max_in_flight
    assert room == NO_ROOM or load.tokens + room.num_tokens <= max(budget, load.tokens + 1)
    assert (room.num_requests > 0) == (room.num_tokens > 0)


@given(CAPACITIES, DEMANDS, st.integers(0, 5000), st.floats(0, 1e8))
def test_idle_engine_always_takes_a_request(
    capacity: Capacity, demand: Demand, num_waiting: int, budget: float
) -> None:
    assert room_for(
        capacity, Load(0, 0), demand, num_waiting=num_waiting, budget=budget
    ).num_requests


@given(CAPACITIES, DEMANDS)
def test_ceiling_and_refill_leave_something_to_claim(capacity: Capacity, demand: Demand) -> None:
    top = ceiling(capacity, demand)
    assert 1 <= top <= capacity.max_in_flight
    assert 1 <= refill(capacity, demand) <= max(1, capacity.max_in_flight // 20)
    assert demand.fair_part >= 1
    assert demand.fair_part * max(1, demand.num_workers) >= demand.num_queued


class Engine:
    """Counters of an engine, as a test sets them."""

    stats = EngineStats()


def admission(capacity: Capacity = CAPACITY) -> tuple[Admission, Engine]:
    engine = Engine()
    return Admission(capacity, lambda: engine.stats), engine


def test_what_goes_in_and_what_is_gathered_is_promised() -> None:
    account, _ = admission()
    for _ in range(10):
        account.enter(record(100, 400))
    assert account.room([], DEEP).num_tokens == 5000
    assert account.room([record(0, 1000)], DEEP).num_tokens == 4000
    account.leave(record(100, 400))
    assert account.room([], DEEP).num_tokens == 5500


def test_requests_that_end_early_make_room_for_more() -> None:
    account, _ = admission()
    for _ in range(400):
        account.learn(record(100, 4000), Response(200, b"{}", prompt_tokens=100, output_tokens=50))
    account.enter(record(100, 4000))
    room = account.room([], DEEP)
    assert room.num_requests == 109
    assert 60 < room.num_tokens / 4100 < 80  # of the headers' tokens: 66 requests of 150 fill it


def test_prompts_found_in_the_prefix_cache_take_no_room_of_their_own() -> None:
    account, _ = admission()
    response = Response(200, b"{}", prompt_tokens=1000, output_tokens=10, cached_tokens=990)
    for _ in range(400):
        account.learn(record(1000, 10), response)
    assert account.room([], DEEP).num_tokens > 10_000 * 1010 / 20 * 0.8


def test_preemptions_shrink_the_budget_and_a_new_engine_counts_from_zero() -> None:
    account, engine = admission()
    account.enter(record(100, 100))
    engine.stats = EngineStats(running=1, preemptions=3)
    assert account.room([], DEEP).num_tokens == 8500 - 200
    engine.stats = EngineStats(running=1, preemptions=0)
    assert account.room([], DEEP).num_tokens == 8500 - 200


def test_engine_that_tells_no_cache_is_fed_by_counts_alone() -> None:
    """A server behind a URL."""
    account, _ = admission(Capacity(max_in_flight=10, max_num_seqs=256))
    for _ in range(9):
        account.enter(record(10**6, 10**6))
    room = account.room([], Demand(1, 1))
    assert (room.num_requests, room.num_tokens) == (1, UNBOUNDED)


def test_header_out_of_all_proportion_counts_as_a_full_cache() -> None:
    account, _ = admission()
    account.learn(record(1, 10**15), Response(200, b"{}", prompt_tokens=1, output_tokens=1))
    account.enter(record(1, 10**15))
    assert account.room([], DEEP) == NO_ROOM
    account.leave(record(1, 10**15))
    assert account.room([], DEEP).num_requests == 110


def test_each_of_several_outputs_counts() -> None:
    body = {"prompt": "x", "max_tokens": 100, "n": 3}
    assert request_from_body(body).max_tokens == 300
    assert request_from_body(body | {"n": "3"}).max_tokens == 100
    assert request_from_body(json.loads('{"prompt": "x", "n": 2}')).max_tokens == 512
