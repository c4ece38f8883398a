"""How far a run is, in words; `display.py` shows it."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How far a run is.

    Attributes:
        num_done: Requests that are done.
        total: Requests of the run.
        parts: What to say of it, the most important first; a narrow terminal leaves the last ones out.
        outlook: How long it will take, or what holds it up.
    """

    num_done: int
    total: int
    parts: Sequence[str]
    outlook: str = ""

    @property
    def line(self) -> str:
        """All of it in one line."""
        return ", ".join([*self.parts, self.outlook] if self.outlook else self.parts)
