"""How many times the KV cache may be promised: moved by what the engine shows, up in small steps, down at once.

Requests are not all at their full length at the same time, so more may be promised than there is. A
preemption says that it was too much: the request that it hits is computed again.
"""

from dataclasses import dataclass, replace

MIN_FACTOR, MAX_FACTOR = 0.5, 4.0
CUT, MAX_RAISE = 0.85, 1.25

FULL_USAGE = 0.95
"""Peak use of the cache that is aimed at."""


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
        was_cut: Whether it moved down the last time.
        num_ended: Requests that ended since it moved.
        peak_usage: Largest use of the cache since then.
        was_full: Whether the budget was used up since then.
    """

    factor: float = 1.0
    was_cut: bool = False
    num_ended: int = 0
    peak_usage: float = 0.0
    was_full: bool = False

    def after(self, look: Look) -> "Overcommit":
        """Return this after one more look at the engine."""
        now = replace(
            self,
            num_ended=self.num_ended + look.num_ended,
            peak_usage=max(self.peak_usage, look.usage),
            was_full=self.was_full or look.is_full,
        )
        if look.num_preempted:
            # Within half a generation of a cut it is still the same overshoot.
            is_known = self.was_cut and now.num_ended < look.num_held / 2
            return now if is_known else Overcommit(max(MIN_FACTOR, self.factor * CUT), True)
        if now.num_ended < max(1, look.num_held):
            return now
        return Overcommit(now.factor * now._step())

    def _step(self) -> float:
        """Half of the way to where the peak would have filled the cache, if the budget was in the way."""
        if not (self.was_full and 0 < self.peak_usage < FULL_USAGE):
            return 1.0
        wanted = (1 + FULL_USAGE / self.peak_usage) / 2
        return min(wanted, MAX_RAISE, MAX_FACTOR / self.factor)
