"""Say what an engine can hold, and how many requests it should get. All of it is pure.

`room.py` calls these rules before each claim.
"""

from dataclasses import dataclass
from math import ceil

from gristmill.worker.admission.gulps import gulp_share

WAITING_DIVISOR = 10
"""Divisor. One request may wait in the engine for each ten sequences, so that it replaces an ended
one at once."""

REFILL_DIVISOR = 20
"""Divisor. A claim for a full engine waits until a twentieth of its places is free, so not every
end of a request causes a claim. A twentieth is half of the requests that wait in the engine, so the
engine never runs out of work."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The capacity of an engine; it does not change while the engine lives.

    Attributes:
        max_in_flight: Most requests in the engine, running or waiting.
        max_num_seqs: Sequences that run at the same time. A server behind a URL does not report it, so it is assumed.
        kv_cache_tokens: Tokens that its KV cache holds; 0 for an engine that does not report it,
            such as a server behind a URL. Then only the number of requests is limited.
        gulp: Free places that a full engine waits for; 1 turns gulps off; None computes
            the number from the lengths of the outputs (`gulps.py`).
        high_share: Share of the places, 0 to 0.5, that only requests of the lane `high` may take.
    """

    max_in_flight: int
    max_num_seqs: int
    kv_cache_tokens: int = 0
    gulp: int | None = 1
    high_share: float = 0.0

    @property
    def max_waiting(self) -> int:
        """Requests that may wait in the engine."""
        return -(-self.max_num_seqs // WAITING_DIVISOR)

    @property
    def max_running(self) -> int:
        """Most requests that run at the same time."""
        return min(self.max_in_flight, self.max_num_seqs)

    @property
    def num_kept(self) -> int:
        """Places that only requests of the lane `high` may take: at most half of all."""
        # Without rounding, 0.1 of 110 is a little more than 11.
        num_places = round(self.max_running * self.high_share, 6)
        return min(ceil(num_places), self.max_running // 2)

    @property
    def has_gulps(self) -> bool:
        """True if a full engine is refilled in gulps."""
        return self.gulp != 1


@dataclass(frozen=True, slots=True)
class Demand:
    """The requests that one queue had left after the last claim.

    Attributes:
        num_queued: Requests that waited.
        num_workers: Workers that claim from the queue, this one included.
    """

    num_queued: int = 0
    num_workers: int = 1

    @property
    def is_shared(self) -> bool:
        """True if another worker may run what this worker leaves."""
        return self.num_workers > 1

    @property
    def fair_part(self) -> int:
        """A worker's equal part of the waiting requests, at least one."""
        return max(1, -(-self.num_queued // max(1, self.num_workers)))


def max_held(capacity: Capacity, demand: Demand) -> int:
    """Return the most requests that the engine may hold, running or waiting.

    No request may wait in the engine in three cases:

    - With gulps, because the next gulp starts it.
    - With kept places, because a request of another lane would start in a kept place.
    - Near the end of a shared queue, because another, idle engine could run it.
    """
    none_waits = (
        capacity.has_gulps or capacity.num_kept > 0 or others_run_the_rest(capacity, demand)
    )
    max_waiting = 0 if none_waits else capacity.max_waiting
    return min(capacity.max_in_flight, capacity.max_num_seqs + max_waiting)


def others_run_the_rest(capacity: Capacity, demand: Demand) -> bool:
    """Return True near the end of a shared queue, when other workers may run idle."""
    return demand.is_shared and demand.num_queued < demand.num_workers * capacity.max_running


def gulp_size(capacity: Capacity, demand: Demand, mean_output_tokens: float) -> int:
    """Return how many free places begin a gulp; 1 if the queue is shallow or nearly empty.

    A queue that holds less than a gulp is shallow: each of its requests starts at once.

    Args:
        capacity: Capacity of the engine.
        demand: Demand of the queue to claim from.
        mean_output_tokens: Mean length of the outputs so far; 0 if none has ended yet.
    """
    size = capacity.gulp or round(capacity.max_running * gulp_share(mean_output_tokens))
    size = max(1, min(size, capacity.max_running - capacity.num_kept))
    is_shallow = demand.num_queued < size or others_run_the_rest(capacity, demand)
    return 1 if is_shallow else size


def refill(capacity: Capacity, demand: Demand) -> int:
    """Return how many free places justify a claim; fewer, down to one, if few requests wait."""
    return max(1, min(max_held(capacity, demand) // REFILL_DIVISOR, demand.num_queued))


def free_places(
    capacity: Capacity, num_held: int, demand: Demand, num_waiting: int, num_kept_free: int = 0
) -> int:
    """Return how many more requests the engine should get; an idle engine always gets some.

    Args:
        capacity: Capacity of the engine.
        num_held: Requests in the engine, or claimed for it.
        demand: Demand of the queue to claim from.
        num_waiting: Requests that wait in the engine by its own count, which may lag a step behind.
        num_kept_free: Kept places that are free; they are left to the lane `high`.
    """
    num_free = max_held(capacity, demand) - num_kept_free - num_held
    if num_held == 0:
        return num_free
    is_enough = num_free >= refill(capacity, demand) and num_waiting <= capacity.max_waiting
    return num_free if is_enough else 0
