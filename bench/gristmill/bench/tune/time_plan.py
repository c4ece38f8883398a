"""Decide what still fits into the time. Pure: every moment is an argument.

The end of a search compares its best with its start in turns. So nothing may begin that would leave
too little time for this.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gristmill.bench.tune.budget import Budget
from gristmill.bench.tune.candidates import Candidate
from gristmill.bench.tune.slots import Slots

GIVE_UP_S = 3.0
"""Seconds for an engine that is still starting to end before it is killed."""

ROUNDS = 2
"""Rounds of the comparison at the end; one if engines must start for it and the time is short."""


@dataclass(slots=True)
class TimePlan:
    """The time left, and the engines on the device.

    Attributes:
        budget: Time budget.
        start: Candidate that the best is compared with; None until it was measured.
        slots: Engines on the device.
    """

    budget: Budget
    start: Candidate | None = None
    slots: Slots = field(default_factory=Slots)

    def has_time(self, candidate: Candidate, best: Candidate | None, now: float) -> bool:
        """Return whether a candidate can be measured, with time left for the comparison.

        Args:
            candidate: Candidate to measure.
            best: Best candidate so far, which may remain the best; None if there is none.
            now: Monotonic seconds.
        """
        after = self.slots.after(candidate)
        reserves = [self._reserve_s(after, rival) for rival in (candidate, best)]
        needed_s = self._cost_s(self.slots, [candidate]) + max(reserves)
        return self.budget.left_s(now) >= needed_s

    def start_timeout_s(self, best: Candidate | None, now: float) -> float:
        """Return the longest start of an engine that leaves time for the comparison.

        Args:
            best: Best candidate so far; None if the comparison is going on, or there is none.
            now: Monotonic seconds.
        """
        left_s = self.budget.left_s(now) - GIVE_UP_S - self._reserve_s(self.slots, best)
        return max(1.0, left_s)

    def turns(self, best: Candidate, now: float) -> list[Candidate]:
        """Return the order of the comparison; empty if the start is the best or no time is left."""
        if self.start is None or best == self.start:
            return []
        for rounds in range(ROUNDS, 0, -1):
            order = self.slots.turns(self.start, best, rounds)
            if self.fits(order, now):
                return order
        return []

    def fits(self, candidates: Sequence[Candidate], now: float) -> bool:
        """Return whether these candidates can be measured one after another."""
        return self.budget.left_s(now) >= self._cost_s(self.slots, candidates)

    def _reserve_s(self, slots: Slots, rival: Candidate | None) -> float:
        """Return the seconds to keep for a comparison: all rounds, or one if it needs starts."""
        if self.start is None or rival is None or rival == self.start:
            return 0.0
        order = slots.turns(self.start, rival, ROUNDS)
        if slots.work(order).starts:
            order = slots.turns(self.start, rival, 1)
        return self._cost_s(slots, order)

    def _cost_s(self, slots: Slots, candidates: Sequence[Candidate]) -> float:
        work = slots.work(candidates)
        return self.budget.cost_s(points=work.points, starts=work.starts, closes=work.closes)
