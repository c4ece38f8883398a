"""Show the state of a queue, for `gristmill queue stats`: lines for people, or one JSON object."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gristmill.producer.overview import read_queue
from gristmill.shared.brakes import Brake, all_braked
from gristmill.shared.fleet import Served
from gristmill.shared.keys import Keys
from gristmill.shared.queue import Queue
from gristmill.shared.queue_stats import Stats, moved_in_words, num_live
from gristmill.shared.redis_full import in_words

COUNTERS = (
    "queued", "in_flight", "queued_tokens", "in_flight_tokens", "bytes",
    "submitted", "succeeded", "failed", "cancelled", "expired",
)  # fmt: skip
"""Counters that the JSON always has; Redis has no field for one that was never above 0."""


@dataclass(frozen=True, slots=True)
class View:
    """What one look at a queue found.

    Attributes:
        stats: The queue.
        brakes: Braked worker -> why it is braked.
        served: Worker -> what it serves.
    """

    stats: Stats
    brakes: Mapping[str, Brake]
    served: Mapping[str, Served]

    @property
    def is_braked(self) -> bool:
        """True if workers live and all of them are braked."""
        return all_braked(self.stats.workers, self.brakes)

    @property
    def work_s(self) -> float | None:
        """Seconds of work at the latest pace; None if unknown, also while all workers are braked."""
        work_s = self.stats.work_s
        return None if work_s and self.is_braked else work_s


async def read_view(queue: Queue) -> View:
    """Look at a queue."""
    view = await read_queue(queue)
    brakes = {worker.name: worker.brake for worker in view.workers if worker.brake}
    served = {worker.name: worker.served for worker in view.workers}
    return View(view.backlog.stats, brakes, served)


def queue_facts(name: str, view: View) -> dict[str, Any]:
    """Return the state of a queue for programs."""
    stats = asdict(view.stats)
    return {
        "queue": name,
        **stats,
        "counters": dict.fromkeys(COUNTERS, 0) | stats["counters"],
        "num_paused": view.stats.num_paused,
        "work_s": view.work_s,
        "brakes": {worker: asdict(brake) for worker, brake in view.brakes.items()},
        "served": {worker: asdict(each) for worker, each in view.served.items()},
    }


def queue_lines(name: str, view: View) -> list[str]:
    """Return the state of a queue for people."""
    stats, counters = view.stats, dict(view.stats.counters)
    queued, in_flight = counters.pop("queued", 0), counters.pop("in_flight", 0)
    queued_tokens, in_flight_tokens = counters.pop("queued_tokens", 0), counters.pop("in_flight_tokens", 0)  # fmt: skip
    lines = [
        f"queue      {name}",
        f"queued     {queued:,}, {stats.num_delayed:,} of them delayed; {queued_tokens:,} tokens,"
        f" {counters.pop('bytes', 0):,} bytes",
        f"in flight  {in_flight:,}; {in_flight_tokens:,} tokens",
        f"work       {_work(view)}",
        *_pauses(stats),
        *_wrong_types(name, stats),
        f"inbox      {stats.num_inbox:,}",
        f"dead       {stats.num_dead:,}",
        f"memory     {_memory(stats.used_memory, stats.max_memory)}",
        "lanes      " + _pairs(stats.depth_by_lane),
        f"scheduling {stats.scheduling}",
        "so far     " + _pairs(dict(sorted(counters.items()))),
        f"producers  {num_live(stats.producers):,} submitting",
        f"workers    {len(stats.workers)}",
    ]
    for worker, remaining_ms in sorted(stats.workers.items()):
        lines.append(f"  {worker}  {_lease(remaining_ms)}; serves {view.served[worker].in_words()}")
        if brake := view.brakes.get(worker):
            lines.append(f"    braked: {brake.in_words()}")
    return lines


def _work(view: View) -> str:
    """Return how long the queue still needs, as words."""
    stats, work_s = view.stats, view.work_s
    if work_s == 0:
        return "0 s: no request waits or runs"
    if view.is_braked:
        return "unknown: every live worker is braked"
    if stats.tokens_per_s is None or work_s is None:
        return "unknown: no worker has finished a request yet"
    return f"{work_s:,.0f} s at the latest {stats.tokens_per_s:,.0f} estimated tokens/s"


def _pauses(view: Stats) -> list[str]:
    """Return a line for each pause, and one for each reason for which requests are set aside."""
    lines = []
    for scope, pause in sorted(view.pauses.items()):
        lines.append(f"paused     {scope} {pause.in_words()}")
    for reason, number in sorted(view.num_parked.items()):
        kind, _, names = reason.partition(":")
        why = (
            f"batch {names} is paused"
            if kind == "batch"
            else f"they need a worker that knows {names}"
        )
        lines.append(f"set aside  {number:,}, because {why}")
    return lines


def _wrong_types(name: str, view: Stats) -> list[str]:
    words = moved_in_words(Keys(name), view.wrong_types)
    return [f"wrong type {words}"] if words else []


def _memory(used_memory: int, max_memory: int) -> str:
    if not used_memory:
        return "unknown: this Redis user may not call INFO"
    used = f"Redis uses {in_words(used_memory)}"
    if not max_memory:
        return f"{used}, without a maxmemory"
    share = f"{used_memory / max_memory:.0%}"
    return f"{used} of maxmemory {in_words(max_memory)} ({share})"


def _pairs(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in counts.items()) or "nothing"


def _lease(remaining_ms: int) -> str:
    return f"lease ends in {remaining_ms / 1000:.1f} s" if remaining_ms > 0 else "lease has ended"
