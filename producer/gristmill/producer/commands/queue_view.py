"""Show the state of a queue, for `gristmill queue stats`: lines for people, or one JSON object."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from gristmill.producer.overview import QueueView
from gristmill.producer.overview.figures import memory
from gristmill.shared.keys import Keys
from gristmill.shared.queue_stats import Stats, moved_in_words, num_live

COUNTERS = (
    "queued", "in_flight", "queued_tokens", "in_flight_tokens", "bytes",
    "submitted", "succeeded", "failed", "cancelled", "expired",
)  # fmt: skip
"""Counters that the JSON always has; Redis has no field for one that was never above 0."""


def queue_facts(view: QueueView) -> dict[str, Any]:
    """Return the state of a queue for programs."""
    stats = asdict(view.backlog.stats)
    return {
        "queue": view.queue,
        **stats,
        "counters": dict.fromkeys(COUNTERS, 0) | stats["counters"],
        "num_paused": view.backlog.stats.num_paused,
        "work_s": view.work_s,
        "brakes": {worker.name: asdict(worker.brake) for worker in view.workers if worker.brake},
        "served": {worker.name: asdict(worker.served) for worker in view.workers},
    }


def queue_lines(view: QueueView) -> list[str]:
    """Return the state of a queue for people."""
    stats = view.backlog.stats
    counters = dict(stats.counters)
    queued, in_flight = counters.pop("queued", 0), counters.pop("in_flight", 0)
    queued_tokens, in_flight_tokens = counters.pop("queued_tokens", 0), counters.pop("in_flight_tokens", 0)  # fmt: skip
    return [
        f"queue      {view.queue}",
        f"queued     {queued:,}, {stats.num_delayed:,} of them delayed; {queued_tokens:,} tokens,"
        f" {counters.pop('bytes', 0):,} bytes",
        f"in flight  {in_flight:,}; {in_flight_tokens:,} tokens",
        f"work       {_work(view)}",
        *_pauses(stats),
        *_wrong_types(view.queue, stats),
        f"inbox      {stats.num_inbox:,}",
        f"dead       {stats.num_dead:,}",
        f"memory     {memory(stats.used_memory, stats.max_memory)}",
        "lanes      " + _pairs(stats.depth_by_lane),
        f"scheduling {stats.scheduling}",
        "so far     " + _pairs(dict(sorted(counters.items()))),
        f"producers  {num_live(stats.producers):,} submitting",
        f"workers    {len(stats.workers)}",
        *_workers(view),
    ]


def _workers(view: QueueView) -> list[str]:
    """Return a line for each worker, and one for its brake."""
    lines = []
    for worker in view.workers:
        lines.append(
            f"  {worker.name}  {_lease(worker.lease_ms)}; serves {worker.served.in_words()}"
        )
        if worker.brake:
            lines.append(f"    braked: {worker.brake.in_words()}")
    if num_left_out := len(view.backlog.stats.workers) - len(view.workers):
        lines.append(f"  and {num_left_out:,} more")
    return lines


def _work(view: QueueView) -> str:
    """Return how long the queue still needs, as words."""
    work_s = view.work_s
    if work_s == 0:
        return "0 s: no request waits or runs"
    if view.is_braked:
        return "unknown: every live worker is braked"
    if work_s is None:
        return "unknown: no worker has finished a request yet"
    return f"{work_s:,.0f} s at the latest {view.backlog.tokens_per_s:,.0f} estimated tokens/s"


def _pauses(stats: Stats) -> list[str]:
    """Return a line for each pause, and one for each reason for which requests are set aside."""
    lines = []
    for scope, pause in sorted(stats.pauses.items()):
        lines.append(f"paused     {scope} {pause.in_words()}")
    for reason, number in sorted(stats.num_parked.items()):
        kind, _, names = reason.partition(":")
        why = (
            f"batch {names} is paused"
            if kind == "batch"
            else f"they need a worker that knows {names}"
        )
        lines.append(f"set aside  {number:,}, because {why}")
    return lines


def _wrong_types(name: str, stats: Stats) -> list[str]:
    words = moved_in_words(Keys(name), stats.wrong_types)
    return [f"wrong type {words}"] if words else []


def _pairs(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in counts.items()) or "nothing"


def _lease(remaining_ms: int) -> str:
    return f"lease ends in {remaining_ms / 1000:.1f} s" if remaining_ms > 0 else "lease has ended"
