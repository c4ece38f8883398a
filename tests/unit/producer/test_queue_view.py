"""What `gristmill queue stats` says of the work of a queue."""

from typing import Any

import pytest

from gristmill.producer.commands.queue_view import queue_facts, queue_lines
from gristmill.producer.overview import QueueView, WorkerView
from gristmill.shared.backlog import Backlog
from gristmill.shared.brakes import Brake
from gristmill.shared.fleet import Served
from gristmill.shared.queue_stats import Stats

BRAKE = Brake("401 AuthenticationError", 20, 20, "Unauthorized", "r-1")


def view_of(tokens: int, pace: float | None, workers: dict[str, int], *braked: str) -> QueueView:
    base: dict[str, Any] = {
        "now_ms": 5, "counters": {"queued_tokens": tokens} if tokens else {}, "depth_by_lane": {}, "num_delayed": 0,
        "num_inbox": 0, "num_dead": 0, "used_memory": 0, "max_memory": 0, "scheduling": "fair", "tokens_per_s": pace,
        "pauses": {}, "num_parked": {}, "workers": workers,
    }  # fmt: skip
    views = [worker_of(name, workers[name], BRAKE if name in braked else None) for name in workers]
    return QueueView(Backlog.of("q", Stats(**base)), views)


def worker_of(name: str, lease_ms: int, brake: Brake | None) -> WorkerView:
    return WorkerView(
        name, lease_ms, 0, 0, Served((), (), 0), "", 0, "", 0, "", "", "stub", 0, None, brake
    )


@pytest.mark.parametrize(
    ("view", "work_s", "words"),
    [
        (view_of(0, None, {}), 0, "0 s: no request waits or runs"),
        (view_of(500, None, {}), None, "unknown: no worker has finished a request yet"),
        (view_of(500, 50, {}), 10, "10 s at the latest 50 estimated tokens/s"),
        (view_of(500, 50, {"a": 9}, "a"), None, "unknown: every live worker is braked"),
        (view_of(500, 50, {"a": 9, "dead": -1}, "a"), None, "unknown: every live worker is braked"),
        (view_of(500, 50, {"a": 9, "b": 9}, "a"), 10, "10 s at the latest 50 estimated tokens/s"),
        (view_of(500, 50, {"dead": -1}), 10, "10 s at the latest 50 estimated tokens/s"),
    ],
)
def test_work_is_no_promise_while_nothing_can_keep_it(
    view: QueueView, work_s: float | None, words: str
) -> None:
    assert f"work       {words}" in queue_lines(view)
    assert queue_facts(view)["work_s"] == work_s


def test_programs_find_zeros_for_a_fresh_queue_and_the_status_of_a_brake() -> None:
    facts = queue_facts(view_of(0, None, {"a": 9}, "a"))
    assert (facts["counters"]["queued"], facts["counters"]["failed"], facts["num_paused"]) == (
        0,
        0,
        0,
    )
    (line,) = [line for line in queue_lines(view_of(0, None, {"a": 9}, "a")) if "braked" in line]
    assert "failed with 401 AuthenticationError: Unauthorized (such as r-1)" in line
