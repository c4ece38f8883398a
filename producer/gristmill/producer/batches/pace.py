"""How fast a slice goes, and when something was last done."""

import time


class Pace:
    """Clocks of one slice."""

    def __init__(self) -> None:
        self._start_s = time.monotonic()
        self._num_finished = 0
        self._last_s: dict[str, float] = {}

    def count(self) -> None:
        """Note a request that finished."""
        self._num_finished += 1

    @property
    def finished_per_s(self) -> float:
        """Requests a second since the slice began."""
        return self._num_finished / max(1.0, self.age_s)

    @property
    def age_s(self) -> float:
        """How long the slice runs."""
        return time.monotonic() - self._start_s

    def waited_s(self, what: str) -> float:
        """Return how long ago something was last `done`; since the slice began, if never."""
        return time.monotonic() - self._last_s.get(what, self._start_s)

    def done(self, what: str) -> None:
        """Note that something was done now."""
        self._last_s[what] = time.monotonic()
