"""How much the engine has room for, in requests and in tokens of its KV cache; pure but for `Admission`.

Before a claim the batcher asks `Admission.room`. What is asked for is what the engine can run now and no
more: what waits in the queue may be run by another worker, what waits in here cannot. docs/tuning.md and
docs/decisions/0013-admission.md say why each rule is there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gristmill.shared.records import Record
from gristmill.worker.admission.kv_cache import CacheAccount
from gristmill.worker.engine.interface import EngineStats, Response

UNBOUNDED = 2**53
"""Tokens of a claim where the cache is unknown."""

WAITING_SHARE = 10
"""A tenth of the sequences may wait in the engine beside those that run, so that one that ends is replaced at once."""

REFILL_SHARE = 20
"""A full engine is refilled a twentieth at a time: half of what waits in it beyond its sequences, so it
never starves, and a claim is not made for each request that ends."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What an engine can hold; it does not change while the engine lives.

    Attributes:
        max_in_flight: Requests in it, running or waiting: the ceiling.
        max_num_seqs: Sequences that run at the same time.
        kv_cache_tokens: Tokens that its KV cache holds; 0 for an engine that tells nothing of itself,
            such as a server behind a URL: then requests are counted, up to the ceiling.
    """

    max_in_flight: int
    max_num_seqs: int
    kv_cache_tokens: int = 0

    @property
    def max_waiting(self) -> int:
        """Requests that may wait in the engine."""
        return -(-self.max_num_seqs // WAITING_SHARE)


@dataclass(frozen=True, slots=True)
class Demand:
    """What one queue had left after the last claim.

    Attributes:
        num_queued: Requests that waited.
        num_workers: Workers that take from it, this one among them.
    """

    num_queued: int = 0
    num_workers: int = 1

    @property
    def is_shared(self) -> bool:
        """Whether what this worker leaves may be run by another."""
        return self.num_workers > 1

    @property
    def fair_part(self) -> int:
        """A worker's equal part of what waits, at least one request."""
        return max(1, -(-self.num_queued // max(1, self.num_workers)))


class Room(NamedTuple):
    """What may be claimed now.

    Attributes:
        num_requests: 0 for nothing.
        num_tokens: By the headers' estimates, for all of them together; the first request always fits.
    """

    num_requests: int
    num_tokens: int


NO_ROOM = Room(0, 0)


def ceiling(capacity: Capacity, demand: Demand) -> int:
    """Return how many requests the engine may hold, running or waiting.

    Near the end of a queue that others work on too, what waits in here is what an idle engine could run.
    """
    if not capacity.kv_cache_tokens:
        return capacity.max_in_flight
    is_ending = demand.num_queued < demand.num_workers * capacity.max_num_seqs
    max_waiting = 0 if demand.is_shared and is_ending else capacity.max_waiting
    return min(capacity.max_in_flight, capacity.max_num_seqs + max_waiting)


def refill(capacity: Capacity, demand: Demand) -> int:
    """Return for how many free places a claim is worth its call; where few wait, for each."""
    return max(1, min(ceiling(capacity, demand) // REFILL_SHARE, demand.num_queued))


def free_places(capacity: Capacity, num_held: int, demand: Demand, num_waiting: int) -> int:
    """Return how many requests more the engine should have; an idle one always takes some.

    Args:
        capacity: Of the engine.
        num_held: Requests that it has, or that are claimed for it.
        demand: Of the queue that would be asked.
        num_waiting: What waits in the engine by its own count; it may lag a step behind.
    """
    if num_held == 0:
        return ceiling(capacity, demand)
    num_free = ceiling(capacity, demand) - num_held
    is_enough = num_free >= refill(capacity, demand) and num_waiting <= capacity.max_waiting
    return num_free if is_enough else 0


class Admission:
    """Answers for one engine what may be claimed, for all queues of its worker.

    Args:
        capacity: Of the engine.
        stats: Returns the engine's counters.
    """

    def __init__(self, capacity: Capacity, stats: Callable[[], EngineStats]) -> None:
        self._capacity = capacity
        self._stats = stats
        self._cache = CacheAccount(capacity.kv_cache_tokens) if capacity.kv_cache_tokens else None
        self._num_held = 0

    def room(self, gathered: Sequence[Record], demand: Demand) -> Room:
        """Return what may be claimed now.

        Args:
            gathered: Claimed and not yet in the engine.
            demand: Of the queue that would be asked.
        """
        stats = self._stats()
        num_held = self._num_held + len(gathered)
        num_free = free_places(self._capacity, num_held, demand, stats.waiting)
        if self._cache is None:
            return Room(num_free, UNBOUNDED) if num_free else NO_ROOM
        self._cache.look(stats)
        num_tokens = self._cache.free_tokens(gathered, num_free) if num_free else 0
        return Room(num_free, num_tokens) if num_tokens else NO_ROOM

    def enter(self, record: Record) -> Callable[[], None]:
        """Note that a request goes into the engine; returns what to call when it is out, however it ended."""
        self._num_held += 1
        leave = self._cache.promise(record) if self._cache else None

        def leave_engine() -> None:
            self._num_held -= 1
            if leave:
                leave()

        return leave_engine

    def learn(self, record: Record, response: Response) -> None:
        """Take in what a request that succeeded really took."""
        if self._cache:
            self._cache.learn(record, response)
