"""When a worker may end: the rule over views of its queues."""

from dataclasses import replace
from typing import Any

import pytest

from gristmill.shared.queue_stats import Stats
from gristmill.worker.until_empty import EmptyRule

EMPTY = Stats(
    now_ms=0,
    counters={"submitted": 5},
    depth_by_lane={},
    num_delayed=0,
    num_inbox=0,
    num_dead=3,
    used_memory=0,
    max_memory=0,
    scheduling="fair",
    tokens_per_s=None,
    pauses={},
    num_parked={},
    workers={"w": 900},
)
TIMEOUT_S = 100.0


def seen_busy() -> EmptyRule:
    """A rule that has seen a request."""
    rule = EmptyRule(TIMEOUT_S, 10.0, 0.0)
    busy = replace(EMPTY, counters={"submitted": 6, "queued": 1})
    assert rule.reason([busy], 1.0, has_settled=False) is None
    return rule


CHANGES: dict[str, dict[str, Any]] = {
    "queued": {"counters": {"queued": 1}},
    "in flight": {"counters": {"in_flight": 1}},
    "inbox": {"num_inbox": 1},
    "admitting": {"num_admitting": 1},
    "producer": {"producers": {"p": 1}},
    "grace": {"grace_ms": 1},
    "silence": {"silent_ms": 8_001},
}


@pytest.mark.parametrize("name", CHANGES)
def test_worker_goes_on_while_something_may_come(name: str) -> None:
    rule, view = seen_busy(), replace(EMPTY, **CHANGES[name])
    assert rule.reason([view], 2.0, has_settled=True) is None
    assert rule.reason([EMPTY, view], 3.0, has_settled=True) is None
    assert rule.reason([EMPTY, EMPTY], 4.0, has_settled=True)


def test_lease_of_a_dead_producer_holds_nobody_up() -> None:
    assert seen_busy().reason([replace(EMPTY, producers={"p": 0})], 2.0, has_settled=False)


def test_worker_that_has_seen_no_request_waits_for_the_first() -> None:
    rule = EmptyRule(TIMEOUT_S, 10.0, 7.0)
    assert rule.reason([EMPTY], 106.9, has_settled=False) is None
    assert "100 s" in (rule.reason([EMPTY], 107.0, has_settled=False) or "")


@pytest.mark.parametrize("counter", ["submitted", "inbox_taken"])
def test_request_that_ended_between_two_looks_was_a_first_one(counter: str) -> None:
    rule = EmptyRule(TIMEOUT_S, 10.0, 0.0)
    assert rule.reason([EMPTY], 1.0, has_settled=False) is None
    assert rule.reason([replace(EMPTY, counters={counter: 9})], 2.0, has_settled=False)


def test_request_that_ended_before_the_first_look_was_a_first_one() -> None:
    assert EmptyRule(TIMEOUT_S, 10.0, 0.0).reason([EMPTY], 1.0, has_settled=True)
