"""What the operations of a queue take and return; `Queue` has the operations themselves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from gristmill.shared.records import Claimed

Scheduling = Literal[
    "fcfs", "priority", "sjf", "deadline", "prefix",
    "fair", "fair+sjf", "fair+deadline", "fair+prefix",
]  # fmt: skip
"""In which order claims take what waits; docs/tuning.md says what each does."""

IDS_A_CALL = 500
"""Ids that one call names: its script stays within a few milliseconds, and others get their turn."""

MIN_WEIGHT, MAX_WEIGHT = 0.001, 1000
"""Bounds of a tenant's weight, as `lua/transitions.lua` takes it."""

SubmitCode = Literal["accepted", "queued", "done", "conflict"]
State = Literal["queued", "delayed", "running", "done", "unknown"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds a queue; see `QueueSettings` for the settings behind it.

    Attributes:
        max_depth: Requests in the queue, waiting or in flight.
        max_bytes: Bytes of their records.
        result_ttl_ms: How long a terminal record is kept.
        dead_letter_ttl_ms: How long a dead letter is kept.
        lease_ms: How long a worker may be silent before its requests are given away.
        min_replicas: Replicas that must have a submit before it counts; not on a cluster.
    """

    max_depth: int = 1_000_000
    max_bytes: int = 8 * 2**30
    result_ttl_ms: int = 24 * 3600 * 1000
    dead_letter_ttl_ms: int = 7 * 24 * 3600 * 1000
    lease_ms: int = 15_000
    min_replicas: int = 0


class Delivery(NamedTuple):
    """A request in flight, by what its fence is made of."""

    id: str
    delivery: int


class HeldLease(NamedTuple):
    """A lease that whoever calls believes to hold: the key, and the token that must stand in it."""

    key: str
    token: str


class Policy(NamedTuple):
    """How a queue orders what waits.

    Attributes:
        scheduling: The order.
        ageing_s: Seconds after which a lane that others overtake gets a turn; 0 for never.
    """

    scheduling: Scheduling = "fair"
    ageing_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Claim:
    """What one claim call returned.

    Attributes:
        now_ms: Redis time.
        next_due_ms: When the next delayed request is due, or None.
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


@dataclass(frozen=True, slots=True)
class Beat:
    """What a worker's heartbeat returned.

    Attributes:
        num_in_flight: Requests that the queue believes this worker holds.
        abort: Ids that it must abort: cancelled, expired, or finished by somebody else.
    """

    num_in_flight: int
    abort: Sequence[str]


@dataclass(frozen=True, slots=True)
class Settlement:
    """A finished request on its way to its record.

    Attributes:
        id: The request's id.
        delivery: The fence of its claim.
        status: How it ended.
        outcome: The inside of the record's JSON.
        prompt_tokens: As the engine counted them; 0 if it did not.
        output_tokens: Likewise.
    """

    id: str
    delivery: int
    status: Literal["succeeded", "failed"]
    outcome: bytes
    prompt_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A request or inbox element that could not be served.

    Attributes:
        id: The request's id; `inbox-<n>` for an element without one.
        reason: attempts_exhausted, engine_killed, unreadable or id_conflict.
        at_ms: When it died.
        attempt: Its last attempt.
        crashes: Engine deaths that it saw.
        evidence: What was seen.
        record: Its bytes.
    """

    id: str
    reason: str
    at_ms: int
    attempt: int
    crashes: int
    evidence: Any
    record: bytes


@dataclass(frozen=True, slots=True)
class Stats:
    """One consistent view of a queue.

    Attributes:
        now_ms: Redis time.
        counters: `queued`, `in_flight` and `bytes` say what is there now; the others only grow.
        depth_by_lane: Entries of each lane, tombstones included.
        num_delayed: Requests that wait for a retry or a start time; part of `queued`.
        num_inbox: Elements that no worker has taken yet; not part of `queued`.
        num_dead: Dead letters.
        used_memory: Bytes that the server uses; 0 if this user may not ask (INFO).
        max_memory: Its `maxmemory`; 0 for no limit, or if this user may not ask.
        scheduling: In which order claims take what waits.
        workers: Worker -> ms until its lease ends.
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
    workers: Mapping[str, int]
