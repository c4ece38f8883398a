"""How much the engine has room for, in requests and in tokens of its KV cache; pure but for `Admission`.

Before a claim the gatherer asks `Admission.room`. What is asked for is what the engine can run now and no
more: what waits in the queue may be run by another worker, what waits in here cannot. docs/tuning.md and
docs/decisions/0013-admission.md say why each rule is there.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from math import ceil
from operator import add

from gristmill.shared.records import Record
from gristmill.worker import metrics
from gristmill.worker.engine.interface import EngineStats, Response
from gristmill.worker.estimates import Seen, Tokens
from gristmill.worker.overcommit import Look, Overcommit

UNBOUNDED = 2**53
"""Tokens of a claim where the cache is unknown."""

WAITING_SHARE = 10
"""A tenth of the sequences may wait in the engine beside those that run."""

REFILL_SHARE = 20
"""A full engine is refilled a twentieth at a time: half of what waits in it beyond its sequences, so it
never starves, and a claim is not made for each request that ends."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What an engine can hold; it does not change while the engine lives.

    Attributes:
        max_in_flight: Requests in it, running or waiting: the ceiling.
        max_num_seqs: Sequences that run at the same time.
        kv_cache_tokens: Tokens that its KV cache holds; 0 when unknown, then only requests count.
    """

    max_in_flight: int
    max_num_seqs: int
    kv_cache_tokens: int = 0

    @property
    def max_waiting(self) -> int:
        """Requests that may wait in the engine, so that a sequence that ends is replaced at once."""
        return max(1, self.max_num_seqs // WAITING_SHARE)


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


@dataclass(frozen=True, slots=True)
class Room:
    """What may be claimed now.

    Attributes:
        num_requests: 0 for nothing.
        num_tokens: By the headers' estimates, for all of them together; the first request always fits.
    """

    num_requests: int
    num_tokens: int


NO_ROOM = Room(0, 0)


@dataclass(frozen=True, slots=True)
class Load:
    """What a worker has in its engine, or has claimed for it.

    Attributes:
        num_requests: How many.
        tokens: What they will take by the time they end.
    """

    num_requests: int
    tokens: float


def ceiling(capacity: Capacity, demand: Demand) -> int:
    """Return how many requests the engine may hold, running or waiting.

    Near the end of a queue that others work on too, what waits in here is what an idle engine could run.
    """
    if demand.is_shared and demand.num_queued < demand.num_workers * capacity.max_in_flight:
        return min(capacity.max_in_flight, capacity.max_num_seqs)
    return capacity.max_in_flight


def refill(capacity: Capacity, demand: Demand) -> int:
    """Return for how many free places a claim is worth its call; where few wait, for each."""
    return max(1, min(capacity.max_in_flight // REFILL_SHARE, demand.num_queued))


def room_for(
    capacity: Capacity, load: Load, demand: Demand, *, num_waiting: int, budget: float
) -> Room:
    """Return what the engine can take beside what it has; an idle one always takes a request.

    Args:
        capacity: Of the engine.
        load: What it has, or what is claimed for it.
        demand: Of the queue that would be asked.
        num_waiting: What waits in it by its own count.
        budget: Tokens that may be promised of its cache.
    """
    if load.num_requests == 0:
        return Room(ceiling(capacity, demand), max(1, int(budget)))
    num_free = ceiling(capacity, demand) - load.num_requests
    if num_waiting > capacity.max_waiting or num_free < refill(capacity, demand):
        return NO_ROOM
    if not has_tokens_for_another(load, budget):
        return NO_ROOM
    return Room(num_free, max(1, int(budget - load.tokens)))


def has_tokens_for_another(load: Load, budget: float) -> bool:
    """Return whether one more request like the others fits: the first of a claim is never too large."""
    return load.num_requests == 0 or budget - load.tokens >= load.tokens / load.num_requests


class Admission:
    """Keeps account of what one engine has been promised, for all queues of its worker.

    Args:
        capacity: Of the engine.
        stats: Returns the engine's counters.
    """

    def __init__(self, capacity: Capacity, stats: Callable[[], EngineStats]) -> None:
        self.capacity = capacity
        self._stats = stats
        self._num_held = 0
        self._held = Tokens()
        self._seen = Seen()
        self._overcommit = Overcommit()
        self._num_ended = self._num_preempted = 0

    def room(self, gathered: Iterable[Record], demand: Demand) -> Room:
        """Return what may be claimed now.

        Args:
            gathered: Claimed and not yet in the engine.
            demand: Of the queue that would be asked.
        """
        extra = [self._tokens_of(record) for record in gathered]
        tokens = self._seen.corrected(reduce(add, extra, self._held))
        load = Load(self._num_held + len(extra), tokens.total)
        stats = self._stats()
        budget = self._budget(stats, load)
        room = room_for(self.capacity, load, demand, num_waiting=stats.waiting, budget=budget)
        if not self.capacity.kv_cache_tokens:
            return room
        return Room(room.num_requests, ceil(self._seen.uncorrected(room.num_tokens)))

    def enter(self, record: Record) -> None:
        """Note that a request goes into the engine."""
        self._num_held += 1
        self._held += self._tokens_of(record)

    def leave(self, record: Record) -> None:
        """Note that it is out, however it ended."""
        self._num_held -= 1
        self._num_ended += 1
        self._held -= self._tokens_of(record)

    def learn(self, record: Record, response: Response) -> None:
        """Take in how many tokens a request really took; what it shared with others took none."""
        own_prompt_tokens = max(0, response.prompt_tokens - response.cached_tokens)
        counted = Tokens(own_prompt_tokens, response.output_tokens)
        self._seen = self._seen.after(self._tokens_of(record), counted)

    def _budget(self, stats: EngineStats, load: Load) -> float:
        """Return the tokens that may be promised, after a look at what the engine made of the last ones."""
        size = self.capacity.kv_cache_tokens
        if not size:
            return UNBOUNDED
        self._overcommit = self._overcommit.after(
            Look(
                num_held=load.num_requests,
                num_ended=self._num_ended,
                num_preempted=max(
                    0, stats.preemptions - self._num_preempted
                ),  # a new engine: from 0
                usage=stats.kv_cache_usage,
                is_full=not has_tokens_for_another(load, size * self._overcommit.factor),
            )
        )
        self._num_ended, self._num_preempted = 0, stats.preemptions
        budget = size * self._overcommit.factor
        metrics.admission_budget_tokens.set(budget)
        metrics.committed_tokens.set(load.tokens)
        return budget

    def _tokens_of(self, record: Record) -> Tokens:
        """By the header; whatever it says, more than the cache holds was never run."""
        tokens = Tokens(record.prompt_tokens, record.max_tokens)
        return tokens.clipped(self.capacity.kv_cache_tokens)
