"""Decide which queue a worker asks first, so that each queue gets its share.

The batcher calls this module, which knows neither Redis nor the engine.

The rule is start-time fair queueing (Goyal, Vin and Cheng 1996), which `claim.lua` applies to
tenants. Each claim charges its queue the estimated tokens divided by the queue's weight. The worker
asks the queue with the smallest charge first.
"""

from collections.abc import Sequence


class QueueShares:
    """Divides the claimed tokens between queues by weight.

    Two queues that always have work differ from their shares by one claim at most. The share of an
    empty queue goes to the next queue in the same round. The empty queue saves no credit for later.

    Args:
        weights: Weights of the queues, in the order of the queues.
    """

    def __init__(self, weights: Sequence[int]) -> None:
        self._weights = weights
        self._paid = [0.0] * len(weights)
        self._clock = 0.0

    def order(self) -> list[int]:
        """Return the queues' indexes, smallest charge first; a tie goes to the heavier queue."""
        return sorted(
            range(len(self._weights)), key=lambda place: (self._paid[place], -self._weights[place])
        )

    def charge(self, place: int, tokens: int) -> None:
        """Charge a queue for a claim.

        Args:
            place: Index of the queue.
            tokens: Estimated prompt and output tokens; 0 changes nothing.
        """
        if tokens:
            self._clock = max(self._paid[place], self._clock)  # no credit for time without work
            self._paid[place] = self._clock + tokens / self._weights[place]
