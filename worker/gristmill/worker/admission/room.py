"""Calculate the engine's room, in requests and in KV cache tokens.

The batcher calls `Admission.room` before a claim. A worker claims only what its engine can run now.
Another worker may run a request that waits in the queue, but not one that waits in this engine.
docs/tuning.md and docs/decisions/0013-admission.md say why each rule is there.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from gristmill.shared.operations import ANY_LANE, LaneRoom
from gristmill.shared.records import Record
from gristmill.worker import metrics
from gristmill.worker.admission.capacity import Capacity, Demand, free_places, gulp_size
from gristmill.worker.admission.gulps import Gulps
from gristmill.worker.admission.kv_cache import CacheAccount, is_high
from gristmill.worker.engine.interface import EngineStats, Response
from gristmill.worker.engine.sequences import num_sequences

UNBOUNDED = 2**53
"""Token limit of a claim if the size of the cache is unknown: in effect, no limit."""

RoomKind = Literal["plain", "gulp", "urgent"]
"""What the room is for: any request; those that fill a gulp; those of the lane `high` alone, in
places that are kept for them or held back for a gulp."""


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
        self._cache = (
            CacheAccount(capacity.kv_cache_tokens, capacity.num_kept / capacity.max_running)
            if capacity.kv_cache_tokens
            else None
        )
        self._gulps = Gulps()
        self._num_held = 0
        self._num_high = 0  # of `_num_held`, those of the lane `high`
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

    def urgent_room(self, gathered: Sequence[Record], *, only_kept: bool) -> Room:
        """Return the room for requests of the lane `high`: kept places, and those held back for a gulp or a refill.

        Args:
            gathered: Records of requests that are claimed and not yet in the engine.
            only_kept: True to leave the places held back to a claim of all lanes.
        """
        num_free = self._capacity.max_running - self._num_held - self._num_places(gathered)
        if only_kept:
            num_free = min(num_free, self._num_kept_free(gathered))
        if not self._has_urgent_claims or num_free <= 0:
            return NO_ROOM
        num_tokens = UNBOUNDED
        if self._cache:
            num_tokens = self._cache.fitting_tokens(gathered, num_free, keep=False)
        if num_tokens == 0:
            return NO_ROOM
        return Room(num_free, num_tokens, self._free_bytes(gathered), "urgent")

    @property
    def _has_urgent_claims(self) -> bool:
        return self._capacity.has_gulps or self._capacity.num_kept > 0

    def _engine_room(
        self, gathered: Sequence[Record], demand: Demand, now_s: float
    ) -> tuple[int, int, RoomKind]:
        """Return how many requests and tokens the engine has room for, 0 and 0 for none, and the kind."""
        stats = self._stats()
        num_free, kind = self._num_free(gathered, demand, stats.waiting, now_s)
        if self._cache is None:
            return (num_free, UNBOUNDED, kind) if num_free else (0, 0, kind)
        self._cache.look(stats)
        num_tokens = self._cache.free_tokens(gathered, num_free, now_s) if num_free else 0
        if num_free and not num_tokens:
            self._gulps.end()
            kind = "plain"
        return (num_free, num_tokens, kind) if num_tokens else (0, 0, kind)

    def _num_free(
        self, gathered: Sequence[Record], demand: Demand, num_waiting: int, now_s: float
    ) -> tuple[int, RoomKind]:
        """Return how many places a claim of all lanes may fill, and whether it is part of a gulp."""
        num_gathered = self._num_places(gathered)
        num_held, num_kept_free = self._num_held + num_gathered, self._num_kept_free(gathered)
        if not self._capacity.has_gulps:
            num_free = free_places(self._capacity, num_held, demand, num_waiting, num_kept_free)
            return num_free, "plain"
        num_free = max(0, self._capacity.max_running - num_kept_free - num_held)
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

    def _num_kept_free(self, gathered: Sequence[Record]) -> int:
        """Return how many of the kept places no request of the lane `high` uses."""
        num_high = self._num_high + sum(self._places(each) for each in gathered if is_high(each))
        return max(0, self._capacity.num_kept - num_high)

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
        num_high = num_places if is_high(record) else 0
        self._num_held += num_places
        self._num_high += num_high
        self._num_bytes += len(record.body)
        self._num_entered += num_places
        leave = self._cache.promise(record) if self._cache else None

        def leave_engine() -> None:
            self._num_held -= num_places
            self._num_high -= num_high
            self._num_bytes -= len(record.body)
            if leave:
                leave()

        return leave_engine

    def learn(self, record: Record, response: Response) -> None:
        """Learn how many tokens a succeeded request took."""
        if self._cache:
            self._cache.learn(record, response)
