"""What Prometheus and the log say of a pause."""

from typing import Any

from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from gristmill.shared.backlog import Backlog
from gristmill.shared.pauses import WHOLE_QUEUE, Pause, batch_scope
from gristmill.shared.queue_stats import Stats
from gristmill.worker import metrics
from gristmill.worker.reports import PauseLog

PAUSE = Pause(1, "ann@desk", "new cards")


def stats_of(**fields: Any) -> Stats:
    base: dict[str, Any] = {
        "now_ms": 5, "counters": {"queued": 7, "in_flight": 2}, "depth_by_lane": {}, "num_delayed": 1, "num_inbox": 3,
        "num_dead": 0, "used_memory": 0, "max_memory": 0, "scheduling": "fair", "tokens_per_s": None, "pauses": {},
        "num_parked": {}, "workers": {},
    }  # fmt: skip
    return Stats(**(base | fields))


def exported(**fields: Any) -> list[float | None]:
    """Return what Prometheus has of queued, paused, in flight and inbox, and whether the queue is paused."""
    metrics.queues.note(Backlog.of("q", stats_of(**fields)))
    states = [
        REGISTRY.get_sample_value("gristmill_queue_requests", {"queue": "q", "state": state})
        for state in ("queued", "paused", "in_flight", "inbox")
    ]
    return [*states, REGISTRY.get_sample_value("gristmill_queue_paused", {"queue": "q"})]


def test_what_a_pause_keeps_back_asks_for_no_more_workers() -> None:
    assert exported() == [7, 0, 2, 3, 0]
    assert exported(pauses={WHOLE_QUEUE: PAUSE}) == [0, 10, 2, 0, 1]
    nightly = batch_scope("nightly")
    parked = {nightly: 4, "facts:x": 1, batch_scope("resumed"): 2}
    assert exported(pauses={nightly: PAUSE}, num_parked=parked) == [3, 4, 2, 3, 0]


def test_a_worker_logs_each_pause_and_its_end_once() -> None:
    log, nightly = PauseLog("q"), batch_scope("nightly")
    with capture_logs() as events:
        for pauses in ({}, {WHOLE_QUEUE: PAUSE}, {WHOLE_QUEUE: PAUSE, nightly: PAUSE}, {}, {}):
            log.take(pauses)
    told = [(event["event"], event["scope"]) for event in events]
    assert told[:2] == [("queue.paused", WHOLE_QUEUE), ("queue.paused", nightly)]
    assert sorted(told[2:]) == [("queue.resumed", nightly), ("queue.resumed", WHOLE_QUEUE)]
    assert events[0]["by"] == "ann@desk"
    assert events[0]["reason"] == "new cards"
