"""Adapt the ratio of promised tokens to the size of the KV cache: raise it slowly, cut it at once.

Requests do not all reach their full length at the same time, so the promises may exceed the cache.
A preemption shows that the requests needed more than the cache for a moment. The engine then
computes the preempted request again. A few preemptions cost less than an engine that runs half
empty. Many cost more.
"""

from dataclasses import dataclass, replace

MIN_FACTOR, MAX_FACTOR = 0.5, 4.0
"""Bounds of the ratio of the budget to the cache."""

CUT, RAISE, LARGE_RAISE = 0.85, 1.1, 1.25
"""Multipliers of that ratio, one for each kind of change."""

LOW_USAGE = 0.75
"""Largest peak of the used share of the cache at which the budget grows in large steps."""

FEW, MANY = 0.25, 0.75
"""Preemptions per held request. Up to FEW the budget may grow; above MANY it shrinks."""


@dataclass(frozen=True, slots=True)
class Look:
    """Observations of an engine since the previous look.

    Attributes:
        num_held: Requests that the engine holds now.
        num_ended: Requests that have ended since the previous look.
        num_preempted: Preemptions since the previous look.
        usage: Used share of the engine's cache now, 0 to 1.
        is_full: True if no further request fits into the budget.
    """

    num_held: int
    num_ended: int
    num_preempted: int
    usage: float
    is_full: bool


@dataclass(frozen=True, slots=True)
class Overcommit:
    """The ratio of the budget to the cache, and the observations that change it.

    Observations last one generation: until as many requests have ended as the engine held. A
    shorter time proves nothing, because young requests still use little of the cache.

    Attributes:
        factor: Ratio of the budget to the cache. It is 1 at first, which is safe if the estimates
            are not too low.
        num_held: Most requests that the engine held at a time in this generation.
        num_ended: Requests that ended in this generation.
        num_preempted: Preemptions in this generation.
        peak_usage: Largest used share of the cache in this generation.
        was_full: True if promises used up the budget in this generation.
    """

    factor: float = 1.0
    num_held: int = 1
    num_ended: int = 0
    num_preempted: int = 0
    peak_usage: float = 0.0
    was_full: bool = False

    def after(self, look: Look) -> "Overcommit":
        """Return a copy, updated with one more look at the engine."""
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
