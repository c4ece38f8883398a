"""Define the data that the operations of a queue take and return; `Queue` has the operations."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Self

from gristmill.shared.chunking import chunks
from gristmill.shared.pauses import WHOLE_QUEUE, Pause
from gristmill.shared.records import Claimed, Record

Scheduling = Literal[
    "fcfs", "priority", "sjf", "deadline", "prefix",
    "fair", "fair+sjf", "fair+deadline", "fair+prefix",
]  # fmt: skip
"""Order in which claims take waiting requests; docs/tuning.md says what each does."""

IDS_A_CALL = 500
"""Most ids in one call, so that its script blocks Redis for a few milliseconds only."""

MAX_CLAIM = 128
"""Most requests in one claim or one release; this keeps the script short."""

MAX_CLAIM_BYTES = 32 * 2**20
"""Most bytes of the records in one claim; a larger record comes alone."""

SubmitCode = Literal["accepted", "queued", "done", "conflict"]
State = Literal["queued", "delayed", "running", "done", "unknown"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a queue; see `QueueSettings` for the settings behind it.

    Attributes:
        max_depth: Requests in the queue, waiting or in flight.
        max_bytes: Bytes of their records.
        max_request_bytes: Bytes of one body; inbox elements have a limit that follows from it.
        result_ttl_ms: Milliseconds for which Redis keeps a terminal record.
        dead_letter_ttl_ms: Milliseconds for which Redis keeps a dead letter.
        lease_ms: Milliseconds without a heartbeat after which other workers may get a worker's
            requests.
        min_replicas: Replicas that must have a submit before it counts; 0 on a cluster.
    """

    max_depth: int = 1_000_000
    max_bytes: int = 8 * 2**30
    max_request_bytes: int = 32 * 2**20
    result_ttl_ms: int = 24 * 3600 * 1000
    dead_letter_ttl_ms: int = 7 * 24 * 3600 * 1000
    lease_ms: int = 15_000
    min_replicas: int = 0


class Delivery(NamedTuple):
    """A request in flight: its id, and the number that is its fence."""

    id: str
    delivery: int

    @property
    def fence(self) -> str:
        """What a settling call gives to show that it means this claim."""
        return str(self.delivery)


class HeldLease(NamedTuple):
    """A lease that the caller should hold: its key, and the token that the key must contain."""

    key: str
    token: str


class SuspectRoom(NamedTuple):
    """The limit on suspects in a claim. A suspect was in flight when an engine or a worker died.

    Attributes:
        max_new: Suspects that the claim may take.
        holds_some: True if the worker holds a suspect already; a suspect with two deaths then
            waits.
    """

    max_new: int = 1
    holds_some: bool = False


ONE_SUSPECT = SuspectRoom()
"""Default of a claim: one suspect, for a worker that holds none."""


class LaneRoom(NamedTuple):
    """The most requests that a claim may take from each lane; None for no limit, 0 for none.

    `LaneRoom(normal=0, low=0)` takes only `high`, so a full worker can take an urgent request. Under the order `fcfs`
    all requests are in the lane `normal`.
    """

    high: int | None = None
    normal: int | None = None
    low: int | None = None


ANY_LANE = LaneRoom()
"""Default of a claim: no limit on any lane."""


class SchedulingPolicy(NamedTuple):
    """The order of waiting requests, and the ageing of lanes.

    Attributes:
        order: Order in which claims take them.
        ageing_s: Seconds after which a lane gets a turn although higher lanes have work; 0 for
            never.
    """

    order: Scheduling = "fair"
    ageing_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Claim:
    """The reply to one claim call.

    Attributes:
        now_ms: Redis time.
        next_due_ms: Moment at which the next delayed request is due, or None.
        inbox: (token, element) pairs to admit, oldest first; see `admit`.
        claimed: The leased requests, in the order in which they should start.
        num_queued: Requests that still wait, delayed ones included.
        num_workers: Workers that hold a lease.
    """

    now_ms: int
    next_due_ms: int | None
    inbox: Sequence[tuple[str, bytes]]
    claimed: Sequence[Claimed]
    num_queued: int = 0
    num_workers: int = 1

    @property
    def next_due_s(self) -> float | None:
        """Seconds until the next delayed request is due, or None."""
        return None if self.next_due_ms is None else (self.next_due_ms - self.now_ms) / 1000

    @classmethod
    def parse(cls, reply: Sequence[Any]) -> Self:
        """Read what `lua/claim.lua` returns after its code."""
        now_ms, next_due_ms, inbox, flat, num_queued, num_workers = reply
        claimed = [
            Claimed(
                item[0].decode(), int(item[1]), int(item[2]), int(item[3]), Record.parse(item[4])
            )
            for item in chunks(flat, 5)
        ]
        elements = sorted(_pairs(inbox), key=lambda pair: int(pair[0]))
        due_ms = next_due_ms if next_due_ms >= 0 else None
        return cls(now_ms, due_ms, elements, claimed, num_queued, num_workers)


@dataclass(frozen=True, slots=True)
class Beat:
    """The reply to a worker's heartbeat.

    Attributes:
        num_in_flight: Requests that this worker holds by the queue's count.
        abort: Ids that it must abort: cancelled, expired, or finished by another worker.
    """

    num_in_flight: int
    abort: Sequence[str]


@dataclass(frozen=True, slots=True)
class Settlement:
    """The end of a request, as `ack` writes it.

    Attributes:
        id: The request's id.
        delivery: Delivery number of its claim: the fence.
        status: succeeded or failed.
        outcome: Inner part of the terminal record's JSON; see `response_outcome`.
        prompt_tokens: Tokens that the engine counted; 0 if it counted none.
        output_tokens: Tokens that the engine counted; 0 if it counted none.
        fence: Fence of the claim. Without it, nothing tells the request from a later one of the same id, and a
            success that comes late does not count.
    """

    id: str
    delivery: int
    status: Literal["succeeded", "failed"]
    outcome: bytes
    prompt_tokens: int = 0
    output_tokens: int = 0
    fence: str = ""


@dataclass(frozen=True, slots=True)
class Stats:
    """One consistent view of a queue.

    Attributes:
        now_ms: Redis time.
        counters: Counters of the queue. `queued`, `in_flight`, `queued_tokens`, `in_flight_tokens`
            and `bytes` are current; the others only grow. Tokens are the requests' estimates.
        depth_by_lane: Entries of each lane, tombstones included.
        num_delayed: Requests that wait for a retry or a start time; part of `queued`.
        num_inbox: Elements that no worker has taken yet; not part of `queued`.
        num_dead: Dead letters.
        used_memory: Bytes that the server uses; 0 if this Redis user may not call INFO.
        max_memory: The server's `maxmemory` in bytes; 0 for no limit, or if this user may not call
            INFO.
        scheduling: Order in which claims take waiting requests.
        tokens_per_s: Estimated tokens that workers settle in a second of work, lately; None if
            none was settled. Time without a request in flight does not count.
        pauses: Scope -> its pause; `queue`, or `batch:` and the name of a batch.
        num_parked: Reason -> requests that no claim, or not every worker, may take; part of
            `queued`. A reason is `batch:` and a paused batch, or `facts:` and the names of facts
            that a worker must understand.
        workers: Worker -> ms until its lease ends.
        wrong_types: Name of a key -> the type that it had, if it was moved away because that type was wrong.
    """

    now_ms: int
    counters: Mapping[str, int]
    depth_by_lane: Mapping[str, int]
    num_delayed: int
    num_inbox: int
    num_dead: int
    used_memory: int
    max_memory: int
    scheduling: str
    tokens_per_s: float | None
    pauses: Mapping[str, Pause]
    num_parked: Mapping[str, int]
    workers: Mapping[str, int]
    wrong_types: Mapping[str, str] = field(default_factory=dict)

    @property
    def num_paused(self) -> int:
        """Waiting requests that a pause keeps from all workers; part of `queued`.

        Claims find the requests of a paused batch one after another, so it counts only those found so far.
        """
        if WHOLE_QUEUE in self.pauses:
            return self.counters.get("queued", 0)
        return sum(number for why, number in self.num_parked.items() if why in self.pauses)

    @property
    def work_s(self) -> float | None:
        """Seconds of work in the queue at its latest pace, also if no worker lives; None if unknown."""
        tokens = self.counters.get("queued_tokens", 0) + self.counters.get("in_flight_tokens", 0)
        if not tokens:
            return 0.0
        return tokens / self.tokens_per_s if self.tokens_per_s else None

    @classmethod
    def parse(cls, reply: Sequence[Any]) -> Self:
        """Read what `lua/stats.lua` returns."""
        now_ms, counters, lanes, workers = reply[:4]
        num_delayed, num_inbox, num_dead, used_memory, max_memory, scheduling = reply[4:10]
        pace, pauses, parked, wrong_types = reply[10:]
        return cls(
            now_ms=now_ms,
            counters={k: int(v) for k, v in _pairs(counters)},
            depth_by_lane={k: int(v) for k, v in _pairs(lanes)},
            num_delayed=num_delayed,
            num_inbox=num_inbox,
            num_dead=num_dead,
            used_memory=used_memory,
            max_memory=max_memory,
            scheduling=scheduling.decode(),
            tokens_per_s=_tokens_per_s(*(int(value or 0) for value in pace)),
            pauses={scope: Pause.parse(note) for scope, note in _pairs(pauses)},
            num_parked=dict(_pairs(parked)),
            workers={k: int(v) - now_ms for k, v in _pairs(workers)},
            wrong_types={name: kind.decode() for name, kind in _pairs(wrong_types)},
        )


def num_live_workers(workers: Mapping[str, int]) -> int:
    """Return how many workers hold a lease that has not ended.

    Args:
        workers: Worker -> ms until its lease ends, as in `Stats`.
    """
    return sum(left_ms > 0 for left_ms in workers.values())


def _tokens_per_s(tokens: int, busy_ms: int) -> float | None:
    return tokens / busy_ms * 1000 if tokens and busy_ms else None


def _pairs(flat: Sequence[Any]) -> Iterable[tuple[str, Any]]:
    """Yield the fields of a HASH or ZSET, as a script returns them."""
    return ((name.decode(), value) for name, value in chunks(flat, 2))
