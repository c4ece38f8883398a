"""Count deaths in a row, and say how long to wait before each restart.

The supervisor of an engine uses it, and the parent of several workers for each of them.
"""

from gristmill.worker.verdicts import backoff_s

MAX_DEATHS = 3
"""Deaths, with no result written between them, after which a restart is hopeless."""


class DeathCount:
    """Deaths with no result written between them.

    Args:
        backoff_base_s: Upper bound in seconds of the random wait before the second restart.
        backoff_max_s: Largest upper bound of a wait in seconds.

    Attributes:
        number: Deaths in a row.
    """

    def __init__(self, backoff_base_s: float, backoff_max_s: float) -> None:
        self._backoff_base_s, self._backoff_max_s = backoff_base_s, backoff_max_s
        self.number = 0

    def add(self, *, has_settled: bool) -> None:
        """Count a death; `has_settled` says whether a result was written since the last one."""
        self.number = 1 if has_settled else self.number + 1

    @property
    def is_hopeless(self) -> bool:
        """True after `MAX_DEATHS` deaths in a row."""
        return self.number >= MAX_DEATHS

    def pause_s(self) -> float:
        """Return the seconds to wait before a restart.

        The first restart does not wait, because a death is rarely the engine's own fault.
        """
        if self.number == 1:
            return 0.0
        return backoff_s(self.number, self._backoff_base_s, self._backoff_max_s)
