"""Decide when to claim and how much.

These functions are pure and get the time as an argument. `batcher.py` and `loop.py` call them. The
policies differ in two rules only. The first is whether a claim may join the requests that already
run. The second is when a gathered batch closes. `admission/room.py` says how much the engine has
room for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from gristmill.shared.operations import MAX_CLAIM
from gristmill.shared.records import Record
from gristmill.worker.admission.capacity import Demand
from gristmill.worker.admission.room import Room, RoomKind

MAX_GULP_START = 2 * MAX_CLAIM
"""Most requests of a gulp that start together; a larger gulp starts in parts."""

BUCKETS = 4
"""Batches that the bucketed policy gathers before it sorts their requests by length."""


class Recorded(Protocol):
    """Anything with a record, such as a claimed request."""

    @property
    def record(self) -> Record:
        """The record of the request."""


T = TypeVar("T", bound=Recorded)

PolicyKind = Literal["continuous", "sequential", "static", "dynamic", "bucketed"]

CloseReason = Literal[
    "full", "no_room", "gulp", "urgent", "joined", "timeout", "drained", "stopping"
]
"""Why a batch closes.

- full: it is as large as it may be.
- no_room: the engine or the worker's memory has no room for more requests.
- gulp: it fills the last of the places that a gulp waited for.
- urgent: it has requests of the lane `high`, claimed for kept places or for those held back for a gulp.
- joined: the engine has room, so the batch need not wait.
- timeout: `timeout_s` has passed since its first request.
- drained: `timeout_s` has passed, and the last claims found no more requests.
- stopping: the worker drains or its engine died, so the worker releases the batch unstarted.
"""


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """The rule that groups requests on their way into the engine.

    Attributes:
        kind: continuous: claimed requests join the running ones at once. sequential: one request
            runs to its end. dynamic: a batch gathers for `timeout_s` and runs to its end. static: a
            batch gathers until full (or until the queue is empty and `timeout_s` has passed) and runs
            to its end. bucketed: the worker gathers four batches, sorts their requests by estimated
            tokens, and runs one batch after the other.
        size: Requests in a batch; for continuous, most requests in one claim.
        timeout_s: Most seconds to fill a batch, counted from its first request.
    """

    kind: PolicyKind
    size: int
    timeout_s: float

    @property
    def has_barrier(self) -> bool:
        """True if a batch runs to its end before the worker claims the next."""
        return self.kind != "continuous"

    @property
    def gather_size(self) -> int:
        """Requests that the worker gathers before it starts them."""
        return {"sequential": 1, "bucketed": self.size * BUCKETS}.get(self.kind, self.size)


def claim_size(
    policy: BatchPolicy, *, running: int, gathered: int, room: Room, demand: Demand
) -> int:
    """Return how many requests the next claim may take; 0 means wait until something ends.

    A continuous claim takes what the engine has room for, up to the policy's size. If other workers
    serve the queue too, it takes at most this worker's equal part of the waiting requests. The
    other workers can run the rest.

    Args:
        policy: The policy.
        running: Requests in the engine.
        gathered: Requests claimed and not started.
        room: Room left after the running and gathered requests. A policy with a barrier heeds only
            the bytes, and claims only for an idle engine.
        demand: Demand of the queue to claim from.
    """
    size = min(_batch_size(policy, room.kind) - gathered, MAX_CLAIM)
    if room.num_bytes == 0:
        return 0
    if policy.has_barrier:
        return 0 if running else max(0, size)
    size = min(size, policy.size)
    part = demand.fair_part if demand.is_shared else size
    return max(0, min(size, room.num_requests, part))


def claim_tokens(policy: BatchPolicy, room: Room, limit: int) -> int:
    """Return how many tokens, by the headers' estimates, the next claim may take.

    Args:
        policy: The policy.
        room: Room that is left in the engine.
        limit: Most tokens of one claim, even if the engine has more room.
    """
    return limit if policy.has_barrier else min(limit, room.num_tokens)


def close_reason(
    policy: BatchPolicy,
    *,
    running: int,
    gathered: int,
    got: int,
    waited_s: float,
    has_room: bool,
    has_bytes: bool = True,
    kind: RoomKind = "plain",
) -> CloseReason | None:
    """Return why a gathered batch starts now, or None to go on gathering.

    Args:
        policy: The policy.
        running: Requests in the engine.
        gathered: Requests claimed and not started.
        got: Requests that the last round of claims returned.
        waited_s: Seconds since the worker claimed the first gathered request.
        has_room: True if the engine has room for more than the running and gathered requests.
        has_bytes: True if the worker's memory has room for more.
        kind: What the room of the last claim was for.
    """
    if gathered == 0:
        return None
    if gathered >= _batch_size(policy, kind):
        return "full"
    if not has_bytes:
        return "no_room"
    if policy.has_barrier or (has_room and not running and policy.timeout_s > 0):
        return _end_of_window(policy, got) if waited_s >= policy.timeout_s else None
    return _end_of_claims(kind, got, has_room)


def _end_of_claims(kind: RoomKind, got: int, has_room: bool) -> CloseReason | None:
    """Return why a batch joins the running requests now; None if more of its gulp is to come."""
    if has_room:
        return None if kind == "gulp" and got else "joined"
    return "no_room" if kind == "plain" else kind


def _batch_size(policy: BatchPolicy, kind: RoomKind) -> int:
    """Return how many requests start together; a gulp starts whole, whatever the size of a claim."""
    return MAX_GULP_START if kind == "gulp" else policy.gather_size


def _end_of_window(policy: BatchPolicy, got: int) -> CloseReason | None:
    if got == 0 and policy.kind != "dynamic":
        return "drained"
    return "timeout" if policy.kind in ("continuous", "dynamic") else None


def groups(policy: BatchPolicy, claimed: Sequence[T]) -> list[Sequence[T]]:
    """Split a gathered batch into groups of requests that start together."""
    if policy.kind != "bucketed":
        return [claimed]
    by_length = sorted(claimed, key=lambda item: item.record.prompt_tokens + item.record.max_tokens)
    return [
        by_length[start : start + policy.size] for start in range(0, len(by_length), policy.size)
    ]
