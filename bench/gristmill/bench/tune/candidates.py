"""The candidates of a search: an engine setting, and a number of requests in flight."""

import math
from dataclasses import dataclass, replace

from gristmill.worker.settings import SPARE


@dataclass(frozen=True, slots=True, order=True)
class Setting:
    """The tuned flags of an engine. Another setting needs another engine start."""

    max_num_seqs: int
    max_num_batched_tokens: int

    @property
    def full(self) -> int:
        """Requests in flight that fill this engine: the worker's default (`in_flight_limit`)."""
        return math.ceil(SPARE * self.max_num_seqs)

    def with_sequences(self, number: int) -> "Setting":
        """Return this setting with another `max_num_seqs`."""
        return replace(self, max_num_seqs=number)

    def __str__(self) -> str:
        return f"{self.max_num_seqs} sequences, {self.max_num_batched_tokens} tokens a step"


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """An engine setting with a number of requests in flight."""

    setting: Setting
    in_flight: int

    @property
    def filled(self) -> int:
        """Largest `max_num_seqs` that this number in flight fills.

        An engine of that size runs nearly alike.
        """
        return max(1, min(int(self.in_flight / SPARE), self.setting.max_num_seqs))

    def __str__(self) -> str:
        return f"{self.setting}, {self.in_flight} in flight"
