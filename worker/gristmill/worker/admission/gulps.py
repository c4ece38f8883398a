"""Decide when a full engine is refilled in gulps: wait until many places are free, then fill all.

A CUDA engine runs a step that only decodes as one graph. It launches a step that also prefills piece
by piece, which takes longer. An engine whose places are refilled one by one prefills in nearly every
step. With gulps, most steps only decode. docs/decisions/0020-gulps.md has the measurements.

`room.py` calls this module before each claim. It gets the time as an argument.
"""

from math import sqrt

MAX_WAIT_S = 0.5
"""Most seconds that a free place is held back for a gulp, so that rare ends do not leave places empty."""

SHARE_AT_FIRST = 1 / 8
"""Share of the sequences in a gulp before the lengths of the outputs are known."""

MAX_SHARE = 1 / 4
"""Largest share of the sequences in a gulp. Outputs so short end in every step anyway."""


def gulp_share(mean_output_tokens: float) -> float:
    """Return the best gulp as a share of the engine's sequences.

    Let an engine run N sequences of L output tokens, so that N / L of them end in a step. A gulp of
    G places leaves G / 2 of them empty on average, a loss of G / 2N. It needs a prefill in one of
    G x L / N steps. If such a step takes twice as long, the loss is N / (G x L). The sum is smallest
    at G = N x sqrt(2 / L).

    Args:
        mean_output_tokens: Mean length L of the outputs; 0 if none has ended yet.
    """
    if mean_output_tokens <= 0:
        return SHARE_AT_FIRST
    return min(MAX_SHARE, sqrt(2 / mean_output_tokens))


class Gulps:
    """The state of one engine between and during gulps.

    A gulp begins when enough places are free, or when one has been free for `MAX_WAIT_S`. It then
    fills the places that were free at that moment, with as many claims as this takes.
    """

    def __init__(self) -> None:
        self._free_since_s: float | None = None
        self._filled_at: int | None = None  # the number of entered requests that ends the gulp

    @property
    def is_filling(self) -> bool:
        """True while a gulp has places to fill."""
        return self._filled_at is not None

    def num_to_fill(self, size: int, num_free: int, num_entered: int, now_s: float) -> int:
        """Return how many places a claim may fill now; 0 means to wait.

        Args:
            size: Free places that begin a gulp.
            num_free: Free places.
            num_entered: Requests that entered the engine or were claimed for it, since its start.
            now_s: Monotonic time in seconds.
        """
        if num_free <= 0:
            self.end()
            return 0
        if self._filled_at is not None and num_entered >= self._filled_at:
            self.end()  # places that became free meanwhile wait for the next gulp
        if self._filled_at is None and self._is_due(size, num_free, now_s):
            self._filled_at = num_entered + num_free
        return min(num_free, self._filled_at - num_entered) if self._filled_at is not None else 0

    def end(self) -> None:
        """End the gulp: its places are filled, or the engine has no room for more."""
        self._free_since_s, self._filled_at = None, None

    def _is_due(self, size: int, num_free: int, now_s: float) -> bool:
        if self._free_since_s is None:
            self._free_since_s = now_s
        return num_free >= size or now_s - self._free_since_s >= MAX_WAIT_S
