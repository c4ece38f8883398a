"""The time budget of a search. Pure: every moment is an argument."""

from dataclasses import dataclass

POINT_SHARE = 1 / 15
MIN_POINT_S, MAX_POINT_S = 8.0, 90.0
"""A point takes at most a fifteenth of the budget, but never less than 8 s or more than 90 s."""


LAST_CLOSE_S = 8.0
"""Least seconds for the end of all engines, which may take longer than that of a few."""

START_MARGIN = 1.15
"""Ratio of the time that one more start may take to the longest so far."""


@dataclass(slots=True)
class Budget:
    """The time budget of a search, including the starts and ends of engines.

    Attributes:
        budget_s: Seconds for the whole search.
        started_at: Start of the search in monotonic seconds.
        start_s: Longest start of an engine so far, in seconds. The first one does not count once
            there is another, because it fills the caches of the disk and of compiled code.
        close_s: Longest end of engines so far, in seconds.
        longest_point_s: Longest measurement of a point so far, in seconds.
    """

    budget_s: float
    started_at: float
    start_s: float = 0.0
    close_s: float = 0.0
    longest_point_s: float = 0.0
    _num_started: int = 0

    @property
    def point_s(self) -> float:
        """Longest time for one point, in seconds."""
        return min(MAX_POINT_S, max(MIN_POINT_S, self.budget_s * POINT_SHARE))

    @property
    def likely_point_s(self) -> float:
        """Time for one more point, in seconds: the longest so far, at first half of the most."""
        return self.longest_point_s or self.point_s / 2

    def took_start(self, seconds: float, *, has_failed: bool = False) -> None:
        """Note how long an engine took to start, or to fail."""
        is_second = self._num_started == 1 and not has_failed
        self.start_s = seconds if is_second else max(self.start_s, seconds)
        self._num_started += not has_failed

    def took_close(self, seconds: float) -> None:
        """Note how long engines took to end."""
        self.close_s = max(self.close_s, seconds)

    def took_point(self, seconds: float) -> None:
        """Note how long a point took to measure, without the start of its engines."""
        self.longest_point_s = max(self.longest_point_s, seconds)

    def left_s(self, now: float) -> float:
        """Return the seconds left for work, without the time to end the running engines."""
        return self.started_at + self.budget_s - now - max(self.close_s, LAST_CLOSE_S)

    def cost_s(self, *, points: int, starts: int, closes: int) -> float:
        """Return the seconds that work will take, by what such work took so far.

        Args:
            points: Points to measure.
            starts: Engines to start, one after another.
            closes: Times that engines must end before others start.
        """
        starts_s = starts * START_MARGIN * self.start_s
        return points * self.likely_point_s + starts_s + closes * self.close_s
