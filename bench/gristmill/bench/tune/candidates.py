"""The candidates of a search: an engine setting, and how many requests go to how many engines."""

import math
from dataclasses import dataclass, replace

from gristmill.worker.settings import SPARE

MAX_DEFAULT_GRAPH = 512
"""Most sequences for which vLLM captures CUDA graphs by default."""

AUTO, PLAIN = 0, 1
"""Values of `refill`: the worker's own size of a gulp, and no gulps."""


@dataclass(frozen=True, slots=True, order=True)
class Setting:
    """The tuned flags of an engine. Another setting needs another engine start.

    Attributes:
        max_num_seqs: Sequences that the engine runs at the same time.
        max_num_batched_tokens: Most tokens in one step.
        graph_size: `--max-cudagraph-capture-size`; 0 leaves it to vLLM.
        slots: Number of equal parts of the device's memory, of which the engine gets one.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    graph_size: int = 0
    slots: int = 1

    @property
    def full(self) -> int:
        """Requests in flight that fill this engine: the worker's default (`in_flight_limit`)."""
        return math.ceil(SPARE * self.max_num_seqs)

    def with_sequences(self, number: int) -> "Setting":
        """Return this setting with another `max_num_seqs`, and graphs for as many if it has any."""
        needs_graphs = self.graph_size and number > MAX_DEFAULT_GRAPH
        return replace(self, max_num_seqs=number, graph_size=number if needs_graphs else 0)

    def scaled(self, *, sequences: float = 1, tokens: float = 1) -> "Setting":
        """Return this setting scaled by these factors.

        More sequences may raise the tokens too: vLLM refuses fewer tokens per step than sequences.
        """
        setting = self.with_sequences(max(1, int(self.max_num_seqs * sequences)))
        max_num_batched_tokens = int(self.max_num_batched_tokens * tokens)
        if sequences > 1:
            max_num_batched_tokens = max(max_num_batched_tokens, setting.max_num_seqs)
        return replace(setting, max_num_batched_tokens=max_num_batched_tokens)

    def __str__(self) -> str:
        graphs = f", graphs up to {self.graph_size}" if self.graph_size else ""
        return f"{self.max_num_seqs} sequences, {self.max_num_batched_tokens} tokens a step{graphs}"


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """A number of equal engines on the device, and how each is fed.

    Attributes:
        setting: Setting of each engine.
        in_flight: Requests in flight in each engine.
        engines: Number of engines.
        refill: Free places that a full engine waits for; 1 (`PLAIN`) turns gulps off, 0 (`AUTO`)
            is the worker's own number.
    """

    setting: Setting
    in_flight: int
    engines: int = 1
    refill: int = PLAIN

    @property
    def spare(self) -> float:
        """Ratio of requests in flight to sequences in a full engine. Gulps let no request wait in it."""
        return SPARE if self.refill == PLAIN else 1.0

    @property
    def filled(self) -> int:
        """Largest `max_num_seqs` that this number in flight fills.

        An engine of that size runs nearly alike.
        """
        return max(1, min(int(self.in_flight / self.spare), self.setting.max_num_seqs))

    @property
    def full(self) -> "Candidate":
        """The same engines, filled."""
        return self.filling(self.setting.max_num_seqs)

    def filling(self, sequences: int) -> "Candidate":
        """Return the same engines, with enough requests in flight to fill this number of sequences."""
        return replace(self, in_flight=math.ceil(self.spare * sequences))

    def on(self, setting: Setting, in_flight: int = 0) -> "Candidate":
        """Return the same number of engines of another setting and the same refill; 0 in flight fills them."""
        moved = replace(self, setting=setting, in_flight=in_flight)
        return moved if in_flight else moved.full

    def refilled(self, refill: int) -> "Candidate":
        """Return the same engines as full as these, with another `refill`."""
        return replace(self, refill=refill).filling(self.filled)

    def is_like(self, other: "Candidate") -> bool:
        """Return whether the two differ in nothing but the number in flight."""
        return replace(self, in_flight=other.in_flight) == other

    def __str__(self) -> str:
        engines = f"{self.engines} engines of " if self.engines > 1 else ""
        refill = {AUTO: ", gulps", PLAIN: ""}.get(self.refill, f", refill {self.refill}")
        return f"{engines}{self.setting}, {self.in_flight} in flight{refill}"
