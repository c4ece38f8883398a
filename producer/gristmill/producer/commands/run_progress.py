"""The progress of a run in words; `display.py` shows it."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunProgress:
    """The progress of a run at one moment.

    Attributes:
        num_done: Requests that are done.
        total: Requests of the run.
        parts: Counts in words, the most important first; a narrow terminal leaves the last ones out.
        outlook: The time left, or the reason why nothing moves.
    """

    num_done: int
    total: int
    parts: Sequence[str]
    outlook: str = ""

    @property
    def line(self) -> str:
        """The counts and the outlook in one line."""
        return ", ".join([*self.parts, self.outlook] if self.outlook else self.parts)
