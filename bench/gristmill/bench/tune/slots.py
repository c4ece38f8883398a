"""Plan which engines stay on a device, and how many starts a row of measurements needs.

Pure. The device's memory is divided into equal slots, and each engine takes one. So an engine that
is needed again need not start again, and two settings can be compared in turns without a start.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gristmill.bench.tune.candidates import Candidate, Setting


@dataclass(frozen=True, slots=True)
class Work:
    """What a row of measurements takes, in numbers of points, starts and ends of engines."""

    points: int = 0
    starts: int = 0
    closes: int = 0


@dataclass(frozen=True, slots=True)
class Slots:
    """The engines on a device.

    Attributes:
        resident: Their settings, the least recently used first.
        keep: Setting that ends last, because it will be measured again.
    """

    resident: tuple[Setting, ...] = ()
    keep: Setting | None = None

    def num_to_start(self, candidate: Candidate) -> int:
        """Return how many engines a candidate lacks."""
        return max(0, candidate.engines - Counter(self.resident)[candidate.setting])

    def to_close(self, candidate: Candidate) -> tuple[Setting, ...]:
        """Return the engines that must end before the candidate's missing engines start."""
        setting = candidate.setting
        others = [each for each in self.resident if each != setting]
        foreign = [each for each in others if each.slots != setting.slots]
        fitting = [each for each in others if each.slots == setting.slots]
        num_after = len(self.resident) - len(foreign) + self.num_to_start(candidate)
        num_excess = max(0, num_after - setting.slots)
        fitting.sort(key=lambda each: each == self.keep)
        return (*foreign, *fitting[:num_excess])

    def after(self, candidate: Candidate) -> "Slots":
        """Return the engines once the candidate was measured."""
        rest = list(self.resident)
        for setting in self.to_close(candidate):
            rest.remove(setting)
        others = [each for each in rest if each != candidate.setting]
        num_own = max(candidate.engines, len(rest) - len(others))
        return Slots((*others, *[candidate.setting] * num_own), self.keep)

    def work(self, candidates: Sequence[Candidate]) -> Work:
        """Return what it takes to measure these candidates one after another."""
        slots, starts, closes = self, 0, 0
        for candidate in candidates:
            starts += slots.num_to_start(candidate)
            closes += bool(slots.to_close(candidate))
            slots = slots.after(candidate)
        return Work(len(candidates), starts, closes)

    def turns(self, first: Candidate, second: Candidate, rounds: int) -> list[Candidate]:
        """Return rounds of both candidates, in the order that needs the fewest starts.

        Without any start each round has the same order. Otherwise every second round is reversed,
        so that one engine serves two points in a row.
        """
        same = [first, second] * rounds
        if not self.work(same).starts:
            return same
        orders = [_alternating(first, second, rounds), _alternating(second, first, rounds)]
        return min(orders, key=lambda order: self.work(order).starts)


def _alternating(first: Candidate, second: Candidate, rounds: int) -> list[Candidate]:
    pair = [first, second]
    return [each for i in range(rounds) for each in (pair if i % 2 == 0 else pair[::-1])]
