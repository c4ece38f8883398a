"""What a search knows: its measured points, and the settings that it left out.

The parts of a search share one `SearchRecord`. Each part is a generator that yields a `Candidate`
and receives its `MeasuredPoint`, or None if there is no time for it.
"""

from collections.abc import Generator
from dataclasses import dataclass

from gristmill.bench.tune.candidates import Candidate
from gristmill.bench.tune.goal import Goal
from gristmill.bench.tune.measured_point import MeasuredPoint

GAIN = 1.03
"""Ratio of two values below which a step counts as no gain: it is noise of short runs, or a
plateau."""

NEAR = 0.97
"""Share of the best value from which a point counts as equal. Below it the search leaves a
direction at once."""

NO_TIME = "there is no time for it"

Asks = Generator[Candidate, MeasuredPoint | None, MeasuredPoint | None]
Walk = Generator[Candidate, MeasuredPoint | None, MeasuredPoint]
"""Part of a search that starts from a point, so it always returns a point."""


@dataclass(frozen=True, slots=True)
class Card:
    """Limits of the device: engines, gulps and captured graphs.

    Attributes:
        engines: Most engines that fit into its memory.
        has_gulps: True if the worker refills this engine in gulps by default.
        has_capture: True if `--max-cudagraph-capture-size` may be set.
    """

    engines: int = 1
    has_gulps: bool = False
    has_capture: bool = False


class SearchRecord:
    """The points of one search.

    Attributes:
        goal: Figure to maximize and its bound.
        pruned: Settings that were not measured, each with the reason.
    """

    def __init__(self, goal: Goal) -> None:
        """Create a record without points."""
        self.goal = goal
        self.pruned: dict[str, str] = {}
        self._measured: dict[Candidate, MeasuredPoint] = {}

    @property
    def points(self) -> list[MeasuredPoint]:
        """All measured points, in the order of their first measurement."""
        return list(self._measured.values())

    @property
    def best(self) -> MeasuredPoint | None:
        """The best measured point; None if no point may be chosen."""
        return self.goal.best(self.points)

    def point(self, candidate: Candidate) -> MeasuredPoint | None:
        """Return the point of a candidate, if it was measured."""
        return self._measured.get(candidate)

    def like(self, candidate: Candidate) -> list[MeasuredPoint]:
        """Return the points that differ from a candidate in nothing but the number in flight."""
        return [point for point in self.points if point.candidate.is_like(candidate)]

    def ask(self, candidate: Candidate) -> Asks:
        """Return the point of a candidate, measured at most once.

        Return None if it failed, or if there is no time for it.
        """
        if candidate not in self._measured:
            point = yield candidate
            if point is None:
                self.prune(candidate, NO_TIME)
                return None
            self._measured[candidate] = point
        point = self._measured[candidate]
        return None if point.failure else point

    def repeat(self, point: MeasuredPoint) -> Asks:
        """Measure a known point again and keep the mean; return None if there is no time."""
        again = yield point.candidate
        if again is None:
            return None
        self._measured[point.candidate] = point.merged(again)
        return again

    def prune(self, what: object, reason: str) -> None:
        """Note why something is not measured; the first reason stands."""
        self.pruned.setdefault(str(what), reason)

    def better(self, best: MeasuredPoint, point: MeasuredPoint | None) -> MeasuredPoint:
        """Return the better of two points."""
        return point if point and self.value(point) > self.value(best) else best

    def value(self, point: MeasuredPoint | None) -> float:
        """Return the figure to maximize; 0 for no point."""
        return self.goal.value(point) if point else 0.0

    def enough(self, best: MeasuredPoint, share: float) -> int:
        """Return the fewest filled sequences that reached this share of the best value."""
        least = share * self.value(best)
        like = self.like(best.candidate)
        return min(each.candidate.filled for each in like if self.value(each) >= least)
