"""Decide when the worker of a full engine claims for the lane `high` alone. Time is an argument.

Such a claim is called urgent; the other kind is a claim of all lanes. Before an urgent claim the worker looks
whether the lane has anything, because a look costs Redis a hundredth of a claim. `batcher.py` calls this module.
"""

from math import inf

URGENT_S = 0.05
"""Seconds between two looks at the lane `high` of a queue. While the engine has a place for it, a request of
that lane waits at most about this time for its claim."""

CLAIM_S = 1.0
"""Most seconds between two claims of a queue, whatever the looks say: only a claim takes from the inbox and
moves delayed requests that are due into their lanes."""

MAX_URGENT_S = 1.0
"""Seconds for which urgent claims may take places that are held back for a gulp or a refill. Then they must leave
these to a claim of all lanes, so that a flood of `high` requests takes no turn from the other lanes."""


class UrgentClaims:
    """What the past claims of a worker say about its next urgent claim."""

    def __init__(self) -> None:
        self._claimed_s: dict[object, float] = {}  # moment of each queue's last claim
        self._looked_s: dict[object, float] = {}  # of its last look or claim
        self._taking_since_s: float | None = (
            None  # first urgent requests since the last claim of all lanes
        )

    def is_due(self, queue: object, now_s: float) -> bool:
        """Return whether it is time to look at a queue again.

        Args:
            queue: Queue to look at.
            now_s: Monotonic time in seconds.
        """
        return now_s - self._looked_s.get(queue, -inf) >= URGENT_S

    def must_claim(self, queue: object, now_s: float) -> bool:
        """Return whether to claim even if a look finds nothing."""
        return now_s - self._claimed_s.get(queue, -inf) >= CLAIM_S

    def may_take_only_kept(self, now_s: float) -> bool:
        """Return whether urgent claims must leave the places held back to a claim of all lanes."""
        return self._taking_since_s is not None and now_s - self._taking_since_s >= MAX_URGENT_S

    def note_look(self, queue: object, now_s: float) -> None:
        """Note a look that found nothing."""
        self._looked_s[queue] = now_s

    def note_all_lanes(self, queue: object, now_s: float) -> None:
        """Note a claim for all lanes, which take `high` first."""
        self._claimed_s[queue] = self._looked_s[queue] = now_s
        self._taking_since_s = None

    def note_urgent(self, queue: object, now_s: float, size: int, num_taken: int) -> None:
        """Note a claim for the lane `high` alone; the next look is due at once if it took its full size.

        Args:
            queue: Queue that was asked.
            now_s: Monotonic time of the claim in seconds.
            size: Requests that the claim could take.
            num_taken: Requests that it took.
        """
        self._claimed_s[queue] = now_s
        if num_taken < size:
            self._looked_s[queue] = now_s
        if num_taken and self._taking_since_s is None:
            self._taking_since_s = now_s
