"""How many times the KV cache may be promised: moved by what the engine shows, up in small steps, down at once.

Requests are not all at their full length at the same time, so more may be promised than there is. A preemption
says that it was too much for a moment: the request that it hits is computed again. A few cost less than an
engine that runs half empty; many are a storm.
"""

from dataclasses import dataclass, replace

MIN_FACTOR, MAX_FACTOR = 0.5, 4.0
CUT, RAISE, LARGE_RAISE = 0.85, 1.1, 1.25

LOW_USAGE = 0.75
"""Peak use of the cache below which the budget grows in large steps."""

FEW, MANY = 0.25, 0.75
"""Preemptions over requests held: up to the one the budget may grow, above the other it shrinks."""


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen of an engine since the look before.

    Attributes:
        num_held: Requests that it holds now.
        num_ended: Requests that have ended.
        num_preempted: Preemptions.
        usage: Used share of its cache now, 0 to 1.
        is_full: Whether no further request fits into the budget.
    """

    num_held: int
    num_ended: int
    num_preempted: int
    usage: float
    is_full: bool


@dataclass(frozen=True, slots=True)
class Overcommit:
    """The budget over the cache. Time is counted in ends of requests.

    A generation is as many ends as there are requests: from those that are still short nothing is concluded.

    Attributes:
        factor: The budget over the cache; 1 at first, which is safe if the estimates are.
        num_held: Most requests held at a time in this generation.
        num_ended: Requests that ended in it.
        num_preempted: Preemptions in it.
        peak_usage: Largest use of the cache in it.
        was_full: Whether the budget was used up in it.
    """

    factor: float = 1.0
    num_held: int = 1
    num_ended: int = 0
    num_preempted: int = 0
    peak_usage: float = 0.0
    was_full: bool = False

    def after(self, look: Look) -> "Overcommit":
        """Return this after one more look at the engine."""
        now = replace(
            self,
            num_held=max(self.num_held, look.num_held),
            num_ended=self.num_ended + look.num_ended,
            num_preempted=self.num_preempted + look.num_preempted,
            peak_usage=max(self.peak_usage, look.usage),
            was_full=self.was_full or look.is_full,
        )
        if now.num_preempted > max(1, MANY * now.num_held):
            return Overcommit(max(MIN_FACTOR, now.factor * CUT))
        if now.num_ended < now.num_held:
            return now
        return Overcommit(min(MAX_FACTOR, now.factor * now._step()))

    def _step(self) -> float:
        if not self.was_full or self.num_preempted > FEW * self.num_held:
            return 1.0
        return RAISE if self.peak_usage > LOW_USAGE else LARGE_RAISE
