"""Define the data that the operations of a queue take and return; `Queue` has the operations."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

from gristmill.shared.chunking import chunks, pairs
from gristmill.shared.errors import QueueFull
from gristmill.shared.queue_stats import Stats
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

    def exceeded(self, queue: str, depth: int, num_bytes: int) -> QueueFull:
        """Return the error for requests that these bounds refuse.

        Args:
            queue: Name of the queue.
            depth: Requests in it.
            num_bytes: Bytes of their records.
        """
        message = (
            f"queue {queue} is full: {depth:,} of {self.max_depth:,} requests and "
            f"{num_bytes:,} of {self.max_bytes:,} bytes; wait for workers to drain it, or "
            "ask the operator to raise GRISTMILL_MAX_DEPTH or GRISTMILL_MAX_BYTES"
        )
        return QueueFull(message, depth, num_bytes)


def max_element_bytes(max_request_bytes: int) -> int:
    r"""Return the most bytes of an element of the inbox or a file that is parsed.

    Escapes such as \u4e2d take up to twice the bytes of the text in a body, so the factor is 2.
    """
    return 2 * max_request_bytes + 65_536


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


@dataclass(frozen=True, slots=True)
class ClaimTerms:
    """What a claim may take; each default takes what any worker may.

    Attributes:
        max_tokens: Most estimated tokens of the whole claim; the first request always fits.
        max_bytes: Most bytes of the claimed records; the first request always fits.
        suspects: Limit on the suspects that the claim may take.
        lanes: Most requests to take from each lane.
        ms_per_token: Milliseconds between two tokens of one request on this worker's engine, 0
            if unknown. The order `deadline` uses it to find deadlines that cannot be met.
        understands: Names of facts that this worker understands. A request that requires
            another fact stays in the queue for a worker that does.
        avoid: Tenants to take from only if no other has anything. It has no effect under an
            order that treats all tenants alike.
    """

    max_tokens: int = 2**53
    max_bytes: int = MAX_CLAIM_BYTES
    suspects: SuspectRoom = ONE_SUSPECT
    lanes: LaneRoom = ANY_LANE
    ms_per_token: float = 0
    understands: Sequence[str] = ()
    avoid: Sequence[str] = ()


ANY_WORK = ClaimTerms()
"""Default of a claim."""


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
        elements = sorted(pairs(inbox), key=lambda pair: int(pair[0]))
        due_ms = next_due_ms if next_due_ms >= 0 else None
        return cls(now_ms, due_ms, elements, claimed, num_queued, num_workers)


@dataclass(frozen=True, slots=True)
class Beat:
    """The reply to a worker's heartbeat.

    Attributes:
        now_ms: Redis time.
        num_in_flight: Requests that this worker holds by the queue's count.
        abort: Ids that it must abort: cancelled, expired, or finished by another worker.
        has_turn: True if this worker must keep the queue up now: reap, expire and store a view.
        view: The latest stored view of the queue, with numbers in place of its workers' names; None
            without one, and for the worker that has the turn.
    """

    now_ms: int
    num_in_flight: int
    abort: Sequence[str]
    has_turn: bool
    view: Stats | None


class Use(NamedTuple):
    """What one request used, beside its tokens, and for whom.

    Attributes:
        tenant: Tenant of the request.
        model: Served model that answered, or "" if unknown.
        cached_tokens: Prompt tokens found in the prefix cache; 0 if unknown.
        device_ms: The request's share of the time of the engine's devices, in milliseconds.
    """

    tenant: str
    model: str = ""
    cached_tokens: int = 0
    device_ms: int = 0


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
        usage: What the ledger needs besides the tokens; without it, the request is not in the ledger.
        fence: Fence of the claim. Without it, nothing tells the request from a later one of the same id, and a
            success that comes late does not count.
    """

    id: str
    delivery: int
    status: Literal["succeeded", "failed"]
    outcome: bytes
    prompt_tokens: int = 0
    output_tokens: int = 0
    usage: Use | None = None
    fence: str = ""

    def ack_values(self) -> tuple[str | int | bytes, ...]:
        """Return the arguments of `lua/ack.lua` for this settlement."""
        fence = self.fence or self.delivery
        tokens = (self.prompt_tokens, self.output_tokens)
        return (self.id, fence, self.status, self.outcome, *tokens)
