"""Calculate the engine's room, in requests and in KV cache tokens. All but `Admission` is pure.

The batcher calls `Admission.room` before a claim. A worker claims only what its engine can run now.
Another worker may run a request that waits in the queue, but not one that waits in this engine.
docs/tuning.md and docs/decisions/0013-admission.md say why each rule is there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from gristmill.shared.operations import ANY_LANE, LaneRoom
from gristmill.shared.records import Record
from gristmill.worker import metrics
from gristmill.worker.admission.gulps import Gulps, gulp_share
from gristmill.worker.admission.kv_cache import CacheAccount
from gristmill.worker.engine.interface import EngineStats, Response
from gristmill.worker.engine.sequences import num_sequences

UNBOUNDED = 2**53
"""Token limit of a claim if the size of the cache is unknown: in effect, no limit."""

WAITING_DIVISOR = 10
"""Divisor. One request may wait in the engine for each ten sequences, so that it replaces an ended
one at once."""

REFILL_DIVISOR = 20
"""Divisor. A claim for a full engine waits until a twentieth of its places is free, so not every
end of a request causes a claim. A twentieth is half of the requests that wait in the engine, so the
engine never runs out of work."""


RoomKind = Literal["plain", "gulp", "urgent"]
"""What the room is for: any request; those that fill a gulp; those of the lane `high` while free
places wait for a gulp."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The capacity of an engine; it does not change while the engine lives.

    Attributes:
        max_in_flight: Most requests in the engine, running or waiting.
        max_num_seqs: Sequences that run at the same time.
        kv_cache_tokens: Tokens that its KV cache holds; 0 for an engine that does not report it,
            such as a server behind a URL. Then only `max_in_flight` limits the requests.
        gulp: Free places that a full engine waits for; 1 turns gulps off; None computes
            the number from the lengths of the outputs (`gulps.py`).
    """

    max_in_flight: int
    max_num_seqs: int
    kv_cache_tokens: int = 0
    gulp: int | None = 1

    @property
    def max_waiting(self) -> int:
        """Requests that may wait in the engine."""
        return -(-self.max_num_seqs // WAITING_DIVISOR)

    @property
    def max_running(self) -> int:
        """Most requests that run at the same time."""
        return min(self.max_in_flight, self.max_num_seqs)

    @property
    def max_held(self) -> int:
        """Most requests in the engine; with gulps, none waits in it."""
        return self.max_running if self.has_gulps else self.max_in_flight

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


class Room(NamedTuple):
    """The size of a claim that the engine has room for now.

    Attributes:
        num_requests: Requests; 0 means that the worker must not claim.
        num_tokens: Tokens of the whole claim, by the headers' estimates. The claim's first request
            may exceed it.
        num_bytes: Bytes of the claimed records that the worker's memory has room for. The claim's
            first request may exceed it; 0 means that the worker must not claim.
        kind: What the room is for.
    """

    num_requests: int
    num_tokens: int
    num_bytes: int
    kind: RoomKind = "plain"

    @property
    def lanes(self) -> LaneRoom:
        """Lanes that the claim may take from."""
        return LaneRoom(normal=0, low=0) if self.kind == "urgent" else ANY_LANE


NO_ROOM = Room(0, 0, 0)


def ceiling(capacity: Capacity, demand: Demand) -> int:
    """Return how many requests the engine may hold, running or waiting.

    Near the end of a shared queue no request may wait in the engine: another, idle engine could run
    it.
    """
    if not capacity.kv_cache_tokens:
        return capacity.max_in_flight
    max_waiting = 0 if others_run_the_rest(capacity, demand) else capacity.max_waiting
    return min(capacity.max_in_flight, capacity.max_num_seqs + max_waiting)


def others_run_the_rest(capacity: Capacity, demand: Demand) -> bool:
    """Return True near the end of a shared queue, when other workers may run idle."""
    return demand.is_shared and demand.num_queued < demand.num_workers * capacity.max_num_seqs


def gulp_size(capacity: Capacity, demand: Demand, mean_output_tokens: float) -> int:
    """Return how many free places begin a gulp; 1 if the queue is shallow or nearly empty.

    A queue that holds less than a gulp is shallow: each of its requests starts at once.

    Args:
        capacity: Capacity of the engine.
        demand: Demand of the queue to claim from.
        mean_output_tokens: Mean length of the outputs so far; 0 if none has ended yet.
    """
    size = capacity.gulp or round(capacity.max_running * gulp_share(mean_output_tokens))
    size = max(1, min(size, capacity.max_running))
    is_shallow = demand.num_queued < size or others_run_the_rest(capacity, demand)
    return 1 if is_shallow else size


def refill(capacity: Capacity, demand: Demand) -> int:
    """Return how many free places justify a claim; fewer, down to one, if few requests wait."""
    return max(1, min(ceiling(capacity, demand) // REFILL_DIVISOR, demand.num_queued))


def free_places(capacity: Capacity, num_held: int, demand: Demand, num_waiting: int) -> int:
    """Return how many more requests the engine should get; an idle engine always gets some.

    Args:
        capacity: Capacity of the engine.
        num_held: Requests in the engine, or claimed for it.
        demand: Demand of the queue to claim from.
        num_waiting: Requests that wait in the engine by its own count, which may lag a step behind.
    """
    if num_held == 0:
        return ceiling(capacity, demand)
    num_free = ceiling(capacity, demand) - num_held
    is_enough = num_free >= refill(capacity, demand) and num_waiting <= capacity.max_waiting
    return num_free if is_enough else 0


class Admission:
    """Calculates what a worker may claim for its engine, from any of its queues.

    Args:
        capacity: Capacity of the engine.
        stats: Returns the engine's counters.
        max_bytes: Most bytes of bodies that the worker may hold.
    """

    def __init__(
        self, capacity: Capacity, stats: Callable[[], EngineStats], max_bytes: int
    ) -> None:
        self._capacity = capacity
        self._stats = stats
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._cache = CacheAccount(capacity.kv_cache_tokens) if capacity.kv_cache_tokens else None
        self._gulps = Gulps()
        self._num_held = 0
        self._gathered: dict[
            int, tuple[Record, int]
        ] = {}  # by id(record); kept, so ids stay unique
        self._num_entered = 0

    @property
    def has_gulps(self) -> bool:
        """True if a full engine is refilled in gulps."""
        return self._capacity.has_gulps

    def room(self, gathered: Sequence[Record], demand: Demand, now_s: float) -> Room:
        """Return the size of a claim that engine and worker have room for now.

        A call may begin or end a gulp.

        Args:
            gathered: Records of requests that are claimed and not yet in the engine.
            demand: Demand of the queue to claim from.
            now_s: Monotonic time in seconds.
        """
        num_requests, num_tokens, kind = self._engine_room(gathered, demand, now_s)
        return Room(num_requests, num_tokens, self._free_bytes(gathered), kind)

    def urgent_room(self, gathered: Sequence[Record]) -> Room:
        """Return the room for requests of the lane `high` while free places wait for a gulp.

        Args:
            gathered: Records of requests that are claimed and not yet in the engine.
        """
        num_free = self._capacity.max_running - self._num_held - self._num_places(gathered)
        if not self._capacity.has_gulps or num_free <= 0:
            return NO_ROOM
        num_tokens = self._cache.fitting_tokens(gathered, num_free) if self._cache else UNBOUNDED
        if num_tokens == 0:
            return NO_ROOM
        return Room(num_free, num_tokens, self._free_bytes(gathered), "urgent")

    def _engine_room(
        self, gathered: Sequence[Record], demand: Demand, now_s: float
    ) -> tuple[int, int, RoomKind]:
        """Return how many requests and tokens the engine has room for, 0 and 0 for none, and the kind."""
        stats = self._stats()
        num_free, kind = self._num_free(self._num_places(gathered), demand, stats.waiting, now_s)
        if self._cache is None:
            return (num_free, UNBOUNDED, kind) if num_free else (0, 0, kind)
        self._cache.look(stats)
        num_tokens = self._cache.free_tokens(gathered, num_free, now_s) if num_free else 0
        if num_free and not num_tokens:
            self._gulps.end()
            kind = "plain"
        return (num_free, num_tokens, kind) if num_tokens else (0, 0, kind)

    def _num_free(
        self, num_gathered: int, demand: Demand, num_waiting: int, now_s: float
    ) -> tuple[int, RoomKind]:
        """Return how many places a claim may fill, and whether it is part of a gulp."""
        num_held = self._num_held + num_gathered
        if not self._capacity.has_gulps:
            return free_places(self._capacity, num_held, demand, num_waiting), "plain"
        num_free = max(0, self._capacity.max_running - num_held)
        mean_output_tokens = self._cache.mean_output_tokens if self._cache else 0
        size = gulp_size(self._capacity, demand, mean_output_tokens)
        metrics.gulp.set(size)
        if self._cache:
            self._cache.refill_share = size / self._capacity.max_running
        if num_held == 0:
            self._gulps.end()
        if size == 1 or num_held == 0:  # it ends no gulp: another queue may still fill it
            return num_free, "plain"
        num_entered = self._num_entered + num_gathered
        num_to_fill = self._gulps.num_to_fill(size, num_free, num_entered, now_s)
        return num_to_fill, "gulp" if self._gulps.is_filling else "plain"

    def _num_places(self, records: Sequence[Record]) -> int:
        """Return how many places requests take; it reads the body of each record once.

        Headers do not have the number. So a claim may take more than is free; the next ones wait.
        """
        self._gathered = {id(each): (each, self._places(each)) for each in records}
        return sum(self._places(each) for each in records)

    def _places(self, record: Record) -> int:
        """Return how many places a request takes."""
        if known := self._gathered.get(id(record)):
            return known[1]
        number = num_sequences(record.endpoint, record.body)
        return min(number, self._capacity.max_running)

    def _free_bytes(self, gathered: Sequence[Record]) -> int:
        return max(0, self._max_bytes - self._num_bytes - sum(len(each.body) for each in gathered))

    def enter(self, record: Record) -> Callable[[], None]:
        """Note that a request enters the engine; return what to call when it leaves."""
        num_places = self._places(record)
        self._num_held += num_places
        self._num_bytes += len(record.body)
        self._num_entered += num_places
        leave = self._cache.promise(record) if self._cache else None

        def leave_engine() -> None:
            self._num_held -= num_places
            self._num_bytes -= len(record.body)
            if leave:
                leave()

        return leave_engine

    def learn(self, record: Record, response: Response) -> None:
        """Learn how many tokens a succeeded request took."""
        if self._cache:
            self._cache.learn(record, response)
