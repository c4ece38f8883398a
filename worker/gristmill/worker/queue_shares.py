"""Which queue a worker asks first, so that each gets its share: pure, told what each claim took.

Start-time fair queueing (Goyal, Vin and Cheng 1996), as `claim.lua` has it over tenants: a queue pays for
what it gets in estimated tokens over its weight, and the one that has paid least is asked first.
"""

from collections.abc import Sequence


class QueueShares:
    """Divides what is claimed by weight.

    Two queues that always have work differ from their shares by one claim at most. One that is empty
    is asked in vain, and what it leaves goes to the next in the same round; it saves nothing up.

    Args:
        weights: Of the queues, in their order.
    """

    def __init__(self, weights: Sequence[int]) -> None:
        self._weights = weights
        self._paid = [0.0] * len(weights)
        self._clock = 0.0

    def order(self) -> list[int]:
        """Return the indexes of the queues, most owed first; a tie goes to the heavier queue."""
        return sorted(
            range(len(self._weights)), key=lambda place: (self._paid[place], -self._weights[place])
        )

    def charge(self, place: int, tokens: int) -> None:
        """Let a queue pay for what it was given.

        Args:
            place: Of the queue.
            tokens: Estimated, prompt and output; 0 changes nothing.
        """
        if tokens:
            self._clock = max(self._paid[place], self._clock)  # no credit for time without work
            self._paid[place] = self._clock + tokens / self._weights[place]
