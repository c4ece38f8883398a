"""When to claim and how much: pure functions, time is an argument. `loop.py` acts on them.

The policies differ in two answers only: may a claim join what already runs, and when is a batch that
is being gathered closed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from gristmill.shared.records import Record

MAX_CLAIM = 128
"""Requests in one claim call: keeps its script short."""

REFILL_SHARE = 20
"""A full engine is refilled a twentieth at a time: half of what waits in it beyond its sequences, so it
never starves, and a claim is not made for each request that ends."""

BUCKETS = 4
"""How many batches the bucketed policy gathers before it sorts them by length."""


class Recorded(Protocol):
    """What has a record: a claimed request."""

    @property
    def record(self) -> Record:
        """Its record."""


T = TypeVar("T", bound=Recorded)

CloseReason = Literal["full", "timeout", "drained", "joined"]


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """How requests are grouped on their way into the engine.

    Attributes:
        kind: continuous: what is claimed starts at once, beside what runs. dynamic: a batch gathers
            for `timeout_s` and runs to its end. static: a batch gathers until full (or until the
            queue is empty and `timeout_s` has passed) and runs to its end. bucketed: four batches are
            gathered, sorted by estimated length and run one after the other.
        size: Requests in a batch; in one claim, for continuous.
        timeout_s: Longest wait to fill a batch, counted from its first request.
        max_in_flight: Requests that the engine holds at most.
    """

    kind: Literal["continuous", "dynamic", "static", "bucketed"]
    size: int
    timeout_s: float
    max_in_flight: int

    @property
    def has_barrier(self) -> bool:
        """Whether a batch runs to its end before the next is claimed."""
        return self.kind != "continuous"

    @property
    def gather_size(self) -> int:
        """Requests that are gathered before they start."""
        return self.size * BUCKETS if self.kind == "bucketed" else self.size


def claim_size(policy: BatchPolicy, running: int, gathered: int) -> int:
    """Return how many requests the next claim may take; 0 means wait until something ends."""
    if policy.has_barrier and running:
        return 0
    room = policy.gather_size - gathered
    if not policy.has_barrier:
        free = policy.max_in_flight - running - gathered
        if free < policy.max_in_flight // REFILL_SHARE:
            return 0
        room = min(room, free)
    return max(0, min(room, MAX_CLAIM))


def close_reason(
    policy: BatchPolicy, *, running: int, gathered: int, got: int, waited_s: float
) -> CloseReason | None:
    """Say why a gathered batch starts now, or None to go on gathering.

    Args:
        policy: The policy.
        running: Requests in the engine.
        gathered: Requests claimed and not started.
        got: What the last claim returned.
        waited_s: Since the first of them was claimed.
    """
    if gathered == 0:
        return None
    if claim_size(policy, running, gathered) == 0:
        return "full"
    if not policy.has_barrier and running:
        return "joined"  # never hold a request back while the engine runs
    if got == 0 and policy.kind != "dynamic" and waited_s >= policy.timeout_s:
        return "drained"
    if policy.kind in ("continuous", "dynamic") and waited_s >= policy.timeout_s:
        return "timeout"
    return None


def groups(policy: BatchPolicy, claimed: Sequence[T]) -> list[Sequence[T]]:
    """Split a gathered batch into what starts together."""
    if policy.kind != "bucketed":
        return [claimed]
    by_length = sorted(claimed, key=lambda item: item.record.prompt_tokens + item.record.max_tokens)
    return [
        by_length[start : start + policy.size] for start in range(0, len(by_length), policy.size)
    ]


def widened(suspect_width: int) -> int:
    """Return how many suspects may run beside normal work after one of them ended well."""
    return min(suspect_width * 2, MAX_CLAIM)
