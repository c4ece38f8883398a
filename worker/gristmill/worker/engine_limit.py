"""Learn from failures how many requests the engine takes at a time. The rules are pure.

The runner notes how each post ends, and the batcher asks before each claim. A refused request waits
in the queue, so without this limit a worker would claim and give back the whole queue.
"""

import math
from collections.abc import Callable, Hashable

STEP_S = 5.0
"""Seconds after a refusal until one more request may run. After twice the time there may be 8 more,
after four times 64 more. The growth with the third power of time comes from CUBIC (RFC 9438)."""

HAND_BACK_PAUSE_S = 1.0
"""Seconds without claims after the worker gave a request back for another worker to claim."""


class EngineLimit:
    """The number of requests that one engine takes at a time; no limit until it refuses one.

    Args:
        pause_s: Returns the seconds to pause claims after so many rounds of failures. A round is
            everything that ran when its first failure came. The next success ends the pause.
    """

    def __init__(self, pause_s: Callable[[int], float]) -> None:
        self._pause_s = pause_s
        self._started_s: dict[Hashable, float] = {}  # posted requests
        self._num_accepted = math.inf  # requests that the engine held when it last refused one
        self._refused_s = 0.0
        self._num_rounds = 0
        self._round_s = -math.inf  # moment of the first failure of the round
        self._resume_s = -math.inf

    def enter(self, request: Hashable, now_s: float) -> None:
        """Note that a request is posted to the engine."""
        self._started_s[request] = now_s

    def leave(self, request: Hashable) -> None:
        """Note that the post has ended."""
        self._started_s.pop(request, None)

    def note_served(self) -> None:
        """End the pause: the engine answered a request."""
        self._num_rounds, self._resume_s = 0, -math.inf

    def note_failed(self, request: Hashable, *, is_refusal: bool, now_s: float) -> None:
        """Pause claims after a failed post, and lower the limit if the engine refused the request.

        Args:
            request: The request; `leave` was not called yet.
            is_refusal: True if the engine refused the request before it ran.
            now_s: Moment of the failure, in monotonic seconds.
        """
        started_s = self._started_s[request]
        if started_s >= self._round_s:
            self._num_rounds += 1
            self._round_s, self._resume_s = now_s, now_s + self._pause_s(self._num_rounds)
        num_accepted = self._num_accepted_before(started_s, now_s)
        if is_refusal and num_accepted:
            self._num_accepted = min(self._limit(now_s), num_accepted)
            self._refused_s = now_s

    def note_handed_back(self, now_s: float) -> None:
        """Pause claims, so that another worker claims what this one gave back."""
        self._resume_s = max(self._resume_s, now_s + HAND_BACK_PAUSE_S)

    def num_free(self, num_running: int, now_s: float) -> float:
        """Return how many requests may start beside the running ones; 0 during a pause."""
        if now_s < self._resume_s:
            return 0
        return max(0, self._limit(now_s) - num_running)

    def _limit(self, now_s: float) -> float:
        return self._num_accepted + math.floor(((now_s - self._refused_s) / STEP_S) ** 3)

    def _num_accepted_before(self, started_s: float, now_s: float) -> int:
        """Return how many requests have run for twice as long as the refused one took.

        The engine holds these. Younger ones may still be refused.
        """
        latest_s = started_s - (now_s - started_s)
        return sum(other_s < latest_s for other_s in self._started_s.values())
