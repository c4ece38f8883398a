"""Derive from `Stats` the figures that people and autoscalers need: seconds of work, deadline slack, longest wait.

The overview of operators (`gristmill.producer.overview`) and the Prometheus series (`queue_series.py`) use it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from gristmill.shared.pauses import WHOLE_QUEUE
from gristmill.shared.queue import Queue
from gristmill.shared.queue_stats import Stats, num_live

NEW_QUEUE_TOKENS_PER_S = 1000.0
"""Pace of a queue that has settled nothing yet, in estimated tokens per second. It lies between a CPU with a small model
(hundreds) and a GPU with an 8B model (over ten thousand)."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """One consistent view of the work of a queue.

    Tokens are the requests' estimates, prompt and output together.

    Attributes:
        queue: Name of the queue.
        stats: The view of the queue that this is derived from.
        num_queued: Requests that workers may claim now or after their delay. Paused ones are not among them.
        num_delayed: Requests that wait for a retry or a start time; part of `num_queued`.
        num_paused: Requests and inbox elements that a pause keeps from all workers.
        num_parked: Requests set aside: their batch is paused, or they have facts that not every worker understands.
        num_inbox: Inbox elements that no worker has taken yet; 0 while the queue is paused.
        num_in_flight: Requests that workers hold.
        num_dead: Dead letters.
        queued_tokens: Tokens of all waiting requests, paused ones included.
        in_flight_tokens: Tokens of the requests that workers hold.
        tokens_per_s: Pace: tokens that workers settle in a second of work, lately; `NEW_QUEUE_TOKENS_PER_S` while
            none was settled.
        is_pace_known: False while none was settled.
        num_workers: Workers with a live lease.
        num_braked: Workers with a live lease that claim single requests only, because their engine fails everything.
    """

    queue: str
    stats: Stats
    num_queued: int
    num_delayed: int
    num_paused: int
    num_parked: int
    num_inbox: int
    num_in_flight: int
    num_dead: int
    queued_tokens: int
    in_flight_tokens: int
    tokens_per_s: float
    is_pace_known: bool
    num_workers: int
    num_braked: int

    @property
    def num_waiting(self) -> int:
        """Requests and inbox elements that workers may claim now or after their delay."""
        return self.num_queued + self.num_inbox

    @property
    def queued_s(self) -> float:
        """Seconds of work that waits, at the pace."""
        return self.queued_tokens / self.tokens_per_s

    @property
    def work_s(self) -> float:
        """Seconds of work that waits or runs, at the pace."""
        return (self.queued_tokens + self.in_flight_tokens) / self.tokens_per_s

    @property
    def slack_s(self) -> float | None:
        """Least spare time in seconds of any deadline; None if no request has a deadline.

        It supposes that workers serve the earliest deadline first at the pace, and that all requests take equally
        long. If it is negative, requests will expire under any order. Each deadline is compared with the work up to
        it, as in the schedulability test for earliest deadline first (Liu and Layland 1973).
        """
        num_open = self.stats.counters.get("queued", 0) + self.num_in_flight
        request_s = self.work_s / max(1, num_open)
        return min(
            (
                (deadline_ms - self.stats.now_ms) / 1000 - rank * request_s
                for rank, deadline_ms in self.stats.deadlines
            ),
            default=None,
        )

    @property
    def oldest_s(self) -> Mapping[str, float]:
        """Lane -> seconds that its oldest request has waited since its submit; see `Stats.oldest_ms`."""
        now_ms = self.stats.now_ms
        return {lane: max(0, now_ms - at_ms) / 1000 for lane, at_ms in self.stats.oldest_ms.items()}

    @classmethod
    def of(cls, queue: str, stats: Stats) -> Self:
        """Derive the backlog of a queue from a view of it."""
        counters = stats.counters
        num_inbox = 0 if WHOLE_QUEUE in stats.pauses else stats.num_inbox
        num_workers = num_live(stats.workers)
        return cls(
            queue=queue,
            stats=stats,
            num_queued=counters.get("queued", 0) - stats.num_paused,
            num_delayed=stats.num_delayed,
            num_paused=stats.num_paused + stats.num_inbox - num_inbox,
            num_parked=sum(stats.num_parked.values()),
            num_inbox=num_inbox,
            num_in_flight=counters.get("in_flight", 0),
            num_dead=stats.num_dead,
            queued_tokens=counters.get("queued_tokens", 0),
            in_flight_tokens=counters.get("in_flight_tokens", 0),
            tokens_per_s=stats.tokens_per_s or NEW_QUEUE_TOKENS_PER_S,
            is_pace_known=stats.tokens_per_s is not None,
            num_workers=num_workers,
            num_braked=min(stats.num_braked, num_workers),
        )


async def read_backlog(queue: Queue) -> Backlog:
    """Read the backlog of a queue in one call of Redis.

    Raises:
        WrongFormat: Another version of Gristmill wrote the queue.
        RedisError, OSError: Redis does not answer or refuses. The client's socket timeout limits the call;
            a caller that has less time sets a limit of its own.
    """
    return Backlog.of(queue.keys.queue, await queue.stats())
