"""The goal of a search: the most tokens per second, with or without a bound on the p95."""

from dataclasses import dataclass

from gristmill.bench.tune.measured_point import MeasuredPoint

TIE = 0.99
"""Ratio above which two throughputs count as equal, because short runs cannot tell them apart."""


@dataclass(frozen=True, slots=True)
class Goal:
    """The goal of a search: throughput, or throughput while the p95 keeps a bound.

    Attributes:
        max_p95_s: The bound, in seconds from a request's claim to its answer; None for no bound.
    """

    max_p95_s: float | None = None

    def allows(self, point: MeasuredPoint) -> bool:
        """Return whether a point may be chosen at all."""
        if point.failure or not point.is_settled:
            return False
        if self.max_p95_s is None:
            return True
        return point.p95_s is not None and point.p95_s <= self.max_p95_s

    def value(self, point: MeasuredPoint) -> float:
        """Return the figure to maximize; 0 for a point that may not be chosen."""
        return point.tokens_per_s if self.allows(point) else 0.0

    def best(self, points: list[MeasuredPoint]) -> MeasuredPoint | None:
        """Return the best point.

        Among points within `TIE` of it, prefer fewer in flight, then more measurements.
        """
        highest = max(map(self.value, points), default=0.0)
        ties = [point for point in points if highest and self.value(point) >= TIE * highest]
        return min(ties, key=_cost, default=None)


def _cost(point: MeasuredPoint) -> tuple[int, int]:
    """Return the requests in flight in all engines, then fewer for more measurements."""
    return point.candidate.engines * point.candidate.in_flight, -point.runs
