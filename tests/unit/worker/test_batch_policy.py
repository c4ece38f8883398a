"""Test when each policy claims and closes a batch, with one table a policy and no clock."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.shared.operations import MAX_CLAIM
from gristmill.shared.records import Claimed, Record
from gristmill.worker.admission.capacity import Demand
from gristmill.worker.admission.room import Room, RoomKind
from gristmill.worker.batch_policy import (
    MAX_GULP_START,
    BatchPolicy,
    PolicyKind,
    claim_size,
    claim_tokens,
    close_reason,
    groups,
)

CONTINUOUS = BatchPolicy("continuous", size=64, timeout_s=0)
LINGERING = BatchPolicy("continuous", size=64, timeout_s=0.5)
SEQUENTIAL = BatchPolicy("sequential", size=64, timeout_s=0.5)
DYNAMIC = BatchPolicy("dynamic", size=8, timeout_s=0.5)
STATIC = BatchPolicy("static", size=8, timeout_s=0)
PATIENT = BatchPolicy("static", size=8, timeout_s=0.5)
BUCKETED = BatchPolicy("bucketed", size=2, timeout_s=0)

ALONE = Demand(num_queued=1000, num_workers=1)


@pytest.mark.parametrize(
    ("policy", "running", "gathered", "room", "demand", "expected"),
    [
        (CONTINUOUS, 0, 0, 1000, ALONE, 64),
        (CONTINUOUS, 60, 0, 40, ALONE, 40),
        (CONTINUOUS, 100, 0, 0, ALONE, 0),
        (CONTINUOUS, 0, 64, 1000, ALONE, 0),
        (CONTINUOUS, 0, 0, 1000, Demand(1000, 2), 64),  # deep: large
        (CONTINUOUS, 0, 0, 1000, Demand(10, 2), 5),  # shallow: an equal part
        (CONTINUOUS, 0, 0, 1000, Demand(3, 4), 1),
        (CONTINUOUS, 9, 0, 1000, Demand(0, 4), 1),  # what has come since then
        (SEQUENTIAL, 0, 0, 1000, ALONE, 1),
        (SEQUENTIAL, 1, 0, 1000, ALONE, 0),
        (DYNAMIC, 0, 3, 0, ALONE, 5),
        (DYNAMIC, 1, 0, 1000, ALONE, 0),  # the barrier
        (BUCKETED, 0, 0, 1000, ALONE, 8),
        (BatchPolicy("static", 4096, 0), 0, 0, 1000, ALONE, 128),  # one call stays short
    ],
)
def test_claim_follows_queue_and_engine(
    policy: BatchPolicy, running: int, gathered: int, room: int, demand: Demand, expected: int
) -> None:
    size = claim_size(
        policy, running=running, gathered=gathered, room=Room(room, 2**40, 1), demand=demand
    )
    assert size == expected


@given(
    kind=st.sampled_from(get_args(PolicyKind)),
    size=st.integers(1, 4096),
    running=st.integers(0, 5000),
    gathered=st.integers(0, 5000),
    room=st.builds(
        Room,
        st.integers(0, 5000),
        st.integers(0, 2**40),
        st.integers(0, 1),
        st.sampled_from(get_args(RoomKind)),
    ),
    demand=st.builds(Demand, st.integers(0, 10**6), st.integers(0, 1000)),
)
def test_claim_is_never_above_any_bound(
    kind: PolicyKind, size: int, running: int, gathered: int, room: Room, demand: Demand
) -> None:
    policy = BatchPolicy(kind, size, 0)
    got = claim_size(policy, running=running, gathered=gathered, room=room, demand=demand)
    assert 0 <= got <= MAX_CLAIM
    largest = MAX_GULP_START if room.kind == "gulp" else policy.gather_size
    assert gathered + got <= max(gathered, largest)
    if kind == "continuous":
        assert got <= room.num_requests
        has_room = room.num_requests and room.num_bytes
        assert got > 0 or not has_room or gathered >= largest  # room is always used
    assert got == 0 or room.num_bytes


def test_barrier_takes_tokens_as_told_and_continuous_as_there_is_room() -> None:
    assert claim_tokens(CONTINUOUS, Room(1, 50, 1), 100) == 50
    assert claim_tokens(CONTINUOUS, Room(1, 500, 1), 100) == 100
    assert claim_tokens(STATIC, Room(1, 50, 1), 100) == 100


@pytest.mark.parametrize(
    ("policy", "running", "gathered", "got", "waited_s", "expected"),
    [
        (CONTINUOUS, 0, 0, 0, 9.0, None),  # nothing to start
        (CONTINUOUS, 0, 1, 1, 0.0, "joined"),
        (CONTINUOUS, 50, 1, 1, 0.0, "joined"),
        (LINGERING, 0, 1, 1, 0.1, None),  # an idle engine waits to fill
        (LINGERING, 1, 1, 1, 0.1, "joined"),  # a running one never does
        (LINGERING, 0, 1, 0, 0.5, "drained"),
        (LINGERING, 0, 3, 1, 0.5, "timeout"),
        (LINGERING, 0, 64, 64, 0.1, "full"),
        (SEQUENTIAL, 0, 1, 1, 0.0, "full"),
        (DYNAMIC, 0, 8, 8, 0.0, "full"),
        (DYNAMIC, 0, 3, 0, 0.1, None),
        (DYNAMIC, 0, 3, 0, 0.5, "timeout"),
        (STATIC, 0, 3, 3, 9.0, None),  # more may be there
        (STATIC, 0, 3, 0, 0.0, "drained"),
        (PATIENT, 0, 3, 0, 0.4, None),
        (PATIENT, 0, 3, 0, 0.5, "drained"),
        (PATIENT, 0, 3, 3, 0.6, None),
        (STATIC, 0, 8, 1, 0.0, "full"),
    ],
)
def test_batch_closes_for_one_reason(
    policy: BatchPolicy,
    running: int,
    gathered: int,
    got: int,
    waited_s: float,
    expected: str | None,
) -> None:
    reason = close_reason(
        policy, running=running, gathered=gathered, got=got, waited_s=waited_s, has_room=True
    )
    assert reason == expected


@pytest.mark.parametrize(
    ("policy", "gathered", "expected"),
    [(CONTINUOUS, 5, "no_room"), (LINGERING, 5, "no_room"), (CONTINUOUS, 64, "full")],
)
def test_continuous_closes_when_the_engine_takes_no_more(
    policy: BatchPolicy, gathered: int, expected: str
) -> None:
    reason = close_reason(policy, running=0, gathered=gathered, got=5, waited_s=0, has_room=False)
    assert reason == expected


@pytest.mark.parametrize("policy", [CONTINUOUS, STATIC, BUCKETED])
def test_full_memory_stops_claims_and_closes_the_batch(policy: BatchPolicy) -> None:
    full = Room(1000, 2**40, 0)
    assert claim_size(policy, running=0, gathered=3, room=full, demand=ALONE) == 0
    reason = close_reason(
        policy, running=0, gathered=3, got=3, waited_s=0, has_room=True, has_bytes=False
    )
    assert reason == "no_room"


def claimed(request_id: str, max_tokens: int) -> Claimed:
    header = f"1|0|0|default|normal|d||0|{max_tokens}|3||/v1/completions|||"
    return Claimed(request_id, 1, 1, 0, Record.parse(header.encode() + b"\n\n{}"))


def test_bucketed_batches_run_like_lengths_together() -> None:
    batch = [claimed("long", 900), claimed("short", 5), claimed("longer", 1000), claimed("mid", 50)]
    sorted_ids = [[item.id for item in group] for group in groups(BUCKETED, batch)]
    assert sorted_ids == [["short", "mid"], ["long", "longer"]]


def test_other_policies_keep_the_order_of_the_claims() -> None:
    batch = [claimed("b", 9), claimed("a", 1)]
    assert groups(CONTINUOUS, batch) == [batch]


@pytest.mark.parametrize(
    ("gathered", "got", "has_room", "expected"),
    [
        (64, 64, True, None),  # more of the gulp is to come
        (65, 1, False, "gulp"),
        (64, 0, True, "joined"),  # the queue has no more
        (MAX_GULP_START, 64, True, "full"),
    ],
)
def test_a_gulp_starts_whole(gathered: int, got: int, has_room: bool, expected: str | None) -> None:
    policy = BatchPolicy("continuous", 64, 0)
    reason = close_reason(
        policy,
        running=400,
        gathered=gathered,
        got=got,
        waited_s=0,
        has_room=has_room,
        kind="gulp",
    )
    assert reason == expected
