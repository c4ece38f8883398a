"""The best point and the start, measured in turns at the end of a search."""

from dataclasses import dataclass, field
from math import inf
from statistics import median
from typing import Any

from gristmill.bench.tune.candidates import Candidate
from gristmill.bench.tune.goal import Goal
from gristmill.bench.tune.measured_point import MeasuredPoint


@dataclass(slots=True)
class Comparison:
    """Measurements of two candidates in turns.

    A machine may change by a quarter from minute to minute, so only turns tell two settings apart.

    Attributes:
        start: Candidate of the user's flags alone.
        best: Best candidate of the search.
        points: Their points, in the order of measurement.
    """

    start: Candidate
    best: Candidate
    points: list[MeasuredPoint] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """True if both were measured."""
        return bool(self.of(self.start) and self.of(self.best))

    @property
    def ratio(self) -> float:
        """Median of the best over the median of the start; 0 if a median is missing."""
        if not self.is_complete or not self.median_of(self.start):
            return 0.0
        return self.median_of(self.best) / self.median_of(self.start)

    def of(self, candidate: Candidate) -> list[MeasuredPoint]:
        """Return the good points of one of the two."""
        return [each for each in self.points if each.candidate == candidate and not each.failure]

    def median_of(self, candidate: Candidate) -> float:
        """Return the median tokens per second of one of the two."""
        return median(point.tokens_per_s for point in self.of(candidate))

    def winner(self, goal: Goal) -> Candidate | None:
        """Return the faster of those that keep the goal's bound in turns; None if neither keeps it."""
        keeping = [each for each in (self.best, self.start) if self._keeps_bound(each, goal)]
        if len(keeping) == 1 or not keeping:
            return keeping[0] if keeping else None
        return self.best if self.ratio > 1 or not self.is_complete else self.start

    def _keeps_bound(self, candidate: Candidate, goal: Goal) -> bool:
        """Return whether the median turn of a candidate keeps the bound."""
        return goal.max_p95_s is None or self.p95_of(candidate) <= goal.max_p95_s

    def p95_of(self, candidate: Candidate) -> float:
        """Return the median p95 of one of the two in seconds; infinity without a measurement."""
        measured = [point.p95_s for point in self.of(candidate) if point.p95_s is not None]
        return median(measured) if measured else inf

    def as_json(self) -> dict[str, Any]:
        """Return it for the record."""
        return {
            "ratio": self.ratio,
            "start": [point.as_json() for point in self.of(self.start)],
            "best": [point.as_json() for point in self.of(self.best)],
        }
