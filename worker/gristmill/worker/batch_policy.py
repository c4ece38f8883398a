"""When to claim and how much: pure functions, time is an argument. `batcher.py` acts on them.

The policies differ in two answers only: may a claim join what already runs, and when is a batch that
is being gathered closed. What the engine has room for is the answer of `admission/room.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from gristmill.shared.operations import MAX_CLAIM
from gristmill.shared.records import Record
from gristmill.worker.admission.room import Demand, Room

BUCKETS = 4
"""How many batches the bucketed policy gathers before it sorts them by length."""


class Recorded(Protocol):
    """What has a record: a claimed request."""

    @property
    def record(self) -> Record:
        """Its record."""


T = TypeVar("T", bound=Recorded)

PolicyKind = Literal["continuous", "sequential", "static", "dynamic", "bucketed"]

CloseReason = Literal["full", "no_room", "joined", "timeout", "drained", "stopping"]
"""Why a batch starts: it is as large as it may be; the engine has no room for more; the engine has room,
so nothing is held back; its window is over; the queue is empty. `stopping`: it does not start, but is
handed back, because the worker drains or its engine died."""


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """How requests are grouped on their way into the engine.

    Attributes:
        kind: continuous: what is claimed starts at once, beside what runs. sequential: one request
            runs to its end. dynamic: a batch gathers for `timeout_s` and runs to its end. static: a
            batch gathers until full (or until the queue is empty and `timeout_s` has passed) and runs
            to its end. bucketed: four batches are gathered, sorted by estimated tokens and run one
            after the other.
        size: Requests in a batch; at most in one claim, for continuous.
        timeout_s: Longest wait to fill a batch, counted from its first request.
    """

    kind: PolicyKind
    size: int
    timeout_s: float

    @property
    def has_barrier(self) -> bool:
        """Whether a batch runs to its end before the next is claimed."""
        return self.kind != "continuous"

    @property
    def gather_size(self) -> int:
        """Requests that are gathered before they start."""
        return {"sequential": 1, "bucketed": self.size * BUCKETS}.get(self.kind, self.size)


def claim_size(
    policy: BatchPolicy, *, running: int, gathered: int, room: Room, demand: Demand
) -> int:
    """Return how many requests the next claim may take; 0 means wait until something ends.

    A continuous claim follows queue and engine: all that there is room for, up to the policy's size,
    while much waits; an equal part of what waits where other workers could run the rest.

    Args:
        policy: The policy.
        running: Requests in the engine.
        gathered: Requests claimed and not started.
        room: What the engine can take beside both; batches with a barrier ask only whether it is idle.
        demand: Of the queue that is asked.
    """
    size = min(policy.gather_size - gathered, MAX_CLAIM)
    if policy.has_barrier:
        return 0 if running else max(0, size)
    part = demand.fair_part if demand.is_shared else size
    return max(0, min(size, room.num_requests, part))


def claim_tokens(policy: BatchPolicy, room: Room, limit: int) -> int:
    """Return how many tokens, by the headers' estimates, the next claim may take.

    Args:
        policy: The policy.
        room: What the engine can take.
        limit: Whatever the engine can take.
    """
    return limit if policy.has_barrier else min(limit, room.num_tokens)


def close_reason(
    policy: BatchPolicy, *, running: int, gathered: int, got: int, waited_s: float, has_room: bool
) -> CloseReason | None:
    """Say why a gathered batch starts now, or None to go on gathering.

    Args:
        policy: The policy.
        running: Requests in the engine.
        gathered: Requests claimed and not started.
        got: What the last claim returned.
        waited_s: Since the first of them was claimed.
        has_room: Whether the engine can take more beside both.
    """
    if gathered == 0:
        return None
    if gathered >= policy.gather_size:
        return "full"
    if not (policy.has_barrier or has_room):
        return "no_room"
    if not policy.has_barrier and (running or policy.timeout_s == 0):
        return "joined"
    return _end_of_window(policy, got) if waited_s >= policy.timeout_s else None


def _end_of_window(policy: BatchPolicy, got: int) -> CloseReason | None:
    if got == 0 and policy.kind != "dynamic":
        return "drained"
    return "timeout" if policy.kind in ("continuous", "dynamic") else None


def groups(policy: BatchPolicy, claimed: Sequence[T]) -> list[Sequence[T]]:
    """Split a gathered batch into what starts together."""
    if policy.kind != "bucketed":
        return [claimed]
    by_length = sorted(claimed, key=lambda item: item.record.prompt_tokens + item.record.max_tokens)
    return [
        by_length[start : start + policy.size] for start in range(0, len(by_length), policy.size)
    ]
