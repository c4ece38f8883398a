"""The time budget of a search. Pure: every moment is an argument."""

from dataclasses import dataclass

POINT_SHARE = 1 / 15
MIN_POINT_S, MAX_POINT_S = 8.0, 90.0
"""A point takes at most a fifteenth of the budget, but never less than 8 s or more than 90 s."""


@dataclass(slots=True)
class Budget:
    """The time budget of a search, including the starts and ends of engines.

    Attributes:
        budget_s: Seconds for the whole search.
        started_at: Start of the search in monotonic seconds.
        start_s: Longest start of an engine so far, in seconds.
        close_s: Longest end of an engine so far, in seconds.
    """

    budget_s: float
    started_at: float
    start_s: float = 0.0
    close_s: float = 0.0

    @property
    def point_s(self) -> float:
        """Longest time for one point, in seconds."""
        return min(MAX_POINT_S, max(MIN_POINT_S, self.budget_s * POINT_SHARE))

    def took_start(self, seconds: float) -> None:
        """Note how long an engine took to start, or to fail."""
        self.start_s = max(self.start_s, seconds)

    def took_close(self, seconds: float) -> None:
        """Note how long an engine took to end."""
        self.close_s = max(self.close_s, seconds)

    def left_s(self, now: float) -> float:
        """Return the seconds left for work, without the time to end the running engine."""
        return self.started_at + self.budget_s - now - self.close_s

    def has_time(self, now: float, *, is_start: bool) -> bool:
        """Return whether another point fits.

        Args:
            now: Monotonic seconds.
            is_start: True if the point needs another engine and the running one must end.
        """
        before_s = self.start_s + self.close_s if is_start else 0.0
        return self.left_s(now) >= before_s + self.point_s / 2
