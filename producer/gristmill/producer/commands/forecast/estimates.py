"""Estimate a sum over all rows from some of them, with an interval."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist, fmean, stdev
from typing import Any

CONFIDENCE = 0.9
"""Share of the intervals that have the true value."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number that is not known exactly.

    Attributes:
        value: The most likely value.
        low: Lower end of the interval of `CONFIDENCE`.
        high: Its upper end.
    """

    value: float
    low: float
    high: float

    @classmethod
    def of_total(cls, values: Sequence[float], num_all: int) -> "Estimate":
        """Estimate the sum of all values from a random sample.

        The interval is that of Student's t, with the correction for a finite population. So it has no
        width if the sample has all values.

        Args:
            values: The sample, at least one value.
            num_all: Number of all values.
        """
        num, mean = len(values), fmean(values)
        if num >= num_all:
            return cls(sum(values), sum(values), sum(values))
        if num == 1:
            return cls(num_all * mean, mean, float("inf"))
        error = stdev(values, mean) / sqrt(num) * sqrt(1 - num / num_all)
        half = num_all * error * t_quantile(num - 1)
        return cls(num_all * mean, max(num_all * mean - half, sum(values)), num_all * mean + half)

    def times(self, factor: float) -> "Estimate":
        """Return the estimate in another unit."""
        return Estimate(self.value * factor, self.low * factor, self.high * factor)

    @property
    def is_exact(self) -> bool:
        """True if the interval has no width."""
        return self.low == self.high

    @property
    def in_words(self) -> str:
        """The value and the interval."""
        if self.is_exact:
            return in_short(self.value)
        return f"{in_short(self.value)} ({in_short(self.low)} to {in_short(self.high)})"

    def facts(self) -> dict[str, Any]:
        """Return the numbers for a program."""
        return {name: getattr(self, name) for name in self.__slots__}


def t_quantile(num_degrees: int) -> float:
    """Return the quantile of Student's t that bounds a two-sided interval of `CONFIDENCE`.

    Two terms of the expansion in Abramowitz and Stegun, 26.7.5; 1 % low at 4 degrees.
    """
    z, n = NormalDist().inv_cdf((1 + CONFIDENCE) / 2), num_degrees
    return z + (z**3 + z) / (4 * n) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)


def in_short(number: float) -> str:
    """Return a number with three digits for people, such as 1.23 M."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(number) >= size:
            scaled = number / (1e3 if letter == "k" else size)
            return f"{scaled:.{max(0, 2 - len(str(int(scaled))) + 1)}f} {letter}"
    return f"{number:,.0f}"
