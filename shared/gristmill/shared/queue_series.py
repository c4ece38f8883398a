"""The Prometheus series of a queue. Worker, gateway and steward export them on /metrics under the same names.

Each process exports the same view of the queue, so a query takes the `max` over the processes. No label comes from a
tenant or a request, so each queue has a fixed number of series. docs/operations.md says what each series answers.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gristmill.shared.backlog import Backlog
from gristmill.shared.keys import LANES
from gristmill.shared.pauses import WHOLE_QUEUE

MAX_AGE_S = 15.0
"""Seconds for which a view is exported. Older figures would hide that Redis does not answer."""

EVENTS = (
    "submitted", "succeeded", "failed", "cancelled", "expired", "retried", "released", "crashed", "reaped_workers",
    "late", "stale", "dead_lettered", "requeued", "inbox_taken",
)  # fmt: skip
"""Counters of a queue that only grow, as docs/protocol.md lists them."""

Samples = Sequence[tuple[Sequence[str], float]]


class QueueSeries(Collector):
    """Exports the latest view of each queue.

    Args:
        queues: Names of queues that count as not readable until their first view.
    """

    def __init__(self, queues: Iterable[str] = ()) -> None:
        self._views: dict[str, tuple[float, Backlog | None]] = dict.fromkeys(queues, (0, None))

    def note(self, backlog: Backlog) -> None:
        """Export this view from now on."""
        self._views[backlog.queue] = (time.monotonic(), backlog)

    def collect(self) -> Iterator[Metric]:
        """Yield the series of all queues whose view is younger than `MAX_AGE_S`."""
        oldest_s = time.monotonic() - MAX_AGE_S
        views = dict(self._views)
        known = {name: view for name, (at_s, view) in views.items() if view and at_s > oldest_s}
        yield _gauge(
            "gristmill_queue_readable",
            "1 if the queue was read in the last 15 s; 0 if not, and then its other series are missing",
            {name: [((), float(name in known))] for name in views},
        )
        for name, (text, labels, samples) in _GAUGES.items():
            yield _gauge(
                name, text, {queue: samples(view) for queue, view in known.items()}, labels
            )
        events = CounterMetricFamily(
            "gristmill_queue_events", "What happened to requests of the queue since it exists", labels=["queue", "event"]
        )  # fmt: skip
        for queue, view in known.items():
            for event in EVENTS:
                events.add_metric([queue, event], view.stats.counters.get(event, 0))
        yield events


def _gauge(
    name: str, text: str, samples: Mapping[str, Samples], labels: Sequence[str] = ()
) -> Metric:
    family = GaugeMetricFamily(name, text, labels=["queue", *labels])
    for queue, of_queue in samples.items():
        for values, number in of_queue:
            family.add_metric([queue, *values], number)
    return family


def _requests(view: Backlog) -> Samples:
    return [
        (["queued"], view.num_queued), (["paused"], view.num_paused), (["in_flight"], view.num_in_flight),
        (["delayed"], view.num_delayed), (["dead"], view.num_dead), (["inbox"], view.num_inbox),
    ]  # fmt: skip


def _by_lane(view: Backlog) -> Samples:
    return [([lane], view.stats.depth_by_lane.get(lane, 0)) for lane in LANES]


def _oldest(view: Backlog) -> Samples:
    """Return the longest waits. A lane with requests and without a known wait has no sample."""
    oldest_s, depths = view.oldest_s, view.stats.depth_by_lane
    return [
        ([lane], oldest_s.get(lane, 0))
        for lane in LANES
        if lane in oldest_s or not depths.get(lane, 0)
    ]


def _set_aside(view: Backlog) -> Samples:
    """Return the requests that are set aside, by kind of reason. Names of batches would be labels without bound."""
    parked = view.stats.num_parked.items()
    return [
        ([kind], sum(number for reason, number in parked if reason.startswith(f"{kind}:")))
        for kind in ("batch", "facts")
    ]


def _memory(view: Backlog) -> Samples:
    """Return the memory of Redis; nothing if this Redis user may not ask."""
    used, most = view.stats.used_memory, view.stats.max_memory
    return [(["used"], used), (["max"], most)] if used else []


_GAUGES: Mapping[str, tuple[str, Sequence[str], Callable[[Backlog], Samples]]] = {
    "gristmill_queue_requests": ("Requests of the whole queue", ["state"], _requests),
    "gristmill_queue_lane_requests": ("Waiting requests of a lane, ended ones included until a claim", ["lane"], _by_lane),
    "gristmill_queue_oldest_seconds": ("Seconds that the oldest request of a lane has waited", ["lane"], _oldest),
    "gristmill_queue_set_aside_requests": ("Requests set aside for a paused batch, or for facts", ["why"], _set_aside),
    "gristmill_queue_tokens": (
        "Estimated tokens of the queue's requests", ["state"],
        lambda view: [(["queued"], view.queued_tokens), (["in_flight"], view.in_flight_tokens)],
    ),
    "gristmill_queue_work_seconds": (
        "Seconds of work at the latest pace", ["state"],
        lambda view: [(["queued"], view.queued_s), (["in_flight"], view.work_s - view.queued_s)],
    ),
    "gristmill_queue_pace_tokens_per_second": (
        "Estimated tokens that workers settle in a second of work; none before the first", [],
        lambda view: [((), view.tokens_per_s)] if view.is_pace_known else [],
    ),
    "gristmill_queue_deadline_slack_seconds": (
        "Least spare time of any deadline at this pace; none without deadlines", [],
        lambda view: [((), view.slack_s)] if view.slack_s is not None else [],
    ),
    "gristmill_queue_workers": (
        "Workers with a live lease, and those of them that are braked", ["state"],
        lambda view: [(["live"], view.num_workers), (["braked"], view.num_braked)],
    ),
    "gristmill_queue_paused": (
        "1 while the whole queue is paused", [], lambda view: [((), WHOLE_QUEUE in view.stats.pauses)],
    ),
    "gristmill_queue_paused_batches": (
        "Paused batches", [], lambda view: [((), len(view.stats.pauses.keys() - {WHOLE_QUEUE}))],
    ),
    "gristmill_queue_bytes": (
        "Bytes of all records of the queue", [], lambda view: [((), view.stats.counters.get("bytes", 0))],
    ),
    "gristmill_queue_redis_memory_bytes": ("Memory of the queue's Redis; max is 0 without a maxmemory", ["kind"], _memory),
}  # fmt: skip
"""Name of a gauge -> its help, its labels after `queue`, and its samples of a view."""
