"""The clock of one slice: its age, its rate, and the time since each kind of step."""

import time
from typing import Literal

Step = Literal["work", "look", "reconcile", "commit"]


class SliceClock:
    """Monotonic times of one slice of work on a batch."""

    def __init__(self) -> None:
        self._start_s = time.monotonic()
        self._num_finished = 0
        self._last_s: dict[Step, float] = {}

    def count_finished(self) -> None:
        """Count a request that finished."""
        self._num_finished += 1

    @property
    def finished_per_s(self) -> float:
        """Requests that finished per second of the slice."""
        return self._num_finished / max(1.0, self.age_s)

    @property
    def age_s(self) -> float:
        """Seconds since the slice began."""
        return time.monotonic() - self._start_s

    def mark(self, step: Step) -> None:
        """Note that a step is done now."""
        self._last_s[step] = time.monotonic()

    def since_s(self, step: Step) -> float:
        """Return the seconds since a step was last done, or since the slice began if it was not."""
        return time.monotonic() - self._last_s.get(step, self._start_s)
