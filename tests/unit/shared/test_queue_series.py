"""What Prometheus gets of a queue."""

import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gristmill.shared import queue_series
from gristmill.shared.backlog import Backlog
from gristmill.shared.pauses import WHOLE_QUEUE, Pause
from gristmill.shared.queue_series import EVENTS, QueueSeries
from gristmill.shared.queue_stats import Stats

PROTOCOL = (Path(__file__).resolve().parents[3] / "docs/protocol.md").read_text()
PAUSE = Pause(1, "ann@desk", "new cards")


def exported(**fields: Any) -> CollectorRegistry:
    base: dict[str, Any] = {
        "now_ms": 100_000, "counters": {}, "depth_by_lane": {}, "num_delayed": 0, "num_inbox": 0, "num_dead": 0,
        "used_memory": 0, "max_memory": 0, "scheduling": "fair", "tokens_per_s": None, "pauses": {}, "num_parked": {},
        "workers": {},
    }  # fmt: skip
    series, registry = QueueSeries(["q", "never-read"]), CollectorRegistry()
    series.note(Backlog.of("q", Stats(**(base | fields))))
    registry.register(series)
    return registry


def value(registry: CollectorRegistry, name: str, queue: str = "q", **labels: str) -> float | None:
    return registry.get_sample_value(f"gristmill_queue_{name}", {"queue": queue, **labels})


def test_work_is_in_requests_tokens_and_seconds() -> None:
    counters = {"queued": 3, "queued_tokens": 300, "in_flight": 1, "in_flight_tokens": 100}
    found = exported(counters=counters, tokens_per_s=50)
    assert value(found, "requests", state="queued") == 3
    assert value(found, "tokens", state="in_flight") == 100
    assert value(found, "work_seconds", state="queued") == 6
    assert value(found, "work_seconds", state="in_flight") == 2
    assert value(found, "pace_tokens_per_second") == 50


def test_why_requests_wait() -> None:
    found = exported(
        pauses={WHOLE_QUEUE: PAUSE, "batch:a": PAUSE},
        num_parked={"batch:a": 4, "batch:b": 1, "facts:x": 2},
        workers={"a": 9, "b": 5, "dead": -1},
        num_braked=1,
        used_memory=5,
        max_memory=9,
        deadlines=((1, 130_000),),
    )
    assert (value(found, "paused"), value(found, "paused_batches")) == (1, 1)
    assert [value(found, "set_aside_requests", why=why) for why in ("batch", "facts")] == [5, 2]
    assert [value(found, "workers", state=state) for state in ("live", "braked")] == [2, 1]
    assert [value(found, "redis_memory_bytes", kind=kind) for kind in ("used", "max")] == [5, 9]
    assert value(found, "deadline_slack_seconds") == 30


def test_who_waits_longest() -> None:
    found = exported(depth_by_lane={"high": 1, "low": 2}, oldest_ms={"high": 90_000})
    assert value(found, "lane_requests", lane="low") == 2
    assert value(found, "oldest_seconds", lane="high") == 10
    assert value(found, "oldest_seconds", lane="normal") == 0, "nothing waits there"
    assert value(found, "oldest_seconds", lane="low") is None, "its order does not tell"


def test_unknown_figures_are_missing_and_not_zero() -> None:
    found = exported()
    assert value(found, "deadline_slack_seconds") is None
    assert value(found, "pace_tokens_per_second") is None
    assert value(found, "redis_memory_bytes", kind="used") is None


def test_an_old_view_is_not_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    found = exported()
    assert [value(found, "readable", queue=name) for name in ("q", "never-read")] == [1, 0]
    monkeypatch.setattr(queue_series, "MAX_AGE_S", 0)
    assert value(found, "readable") == 0
    assert value(found, "requests", state="queued") is None


def test_every_counter_of_the_protocol_is_exported() -> None:
    table = PROTOCOL.split("The fields of `stats` that only grow:")[1].split("\n\n")[1]
    first_cells = [row.split("|")[1] for row in table.splitlines()[2:]]
    assert [*EVENTS] == re.findall(r"`(\w+)`", "".join(first_cells))
    assert value(exported(counters={"failed": 2}), "events_total", event="failed") == 2
    assert value(exported(), "events_total", event="failed") == 0
