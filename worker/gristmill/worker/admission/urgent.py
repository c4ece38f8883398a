"""Decide when the worker of a full engine claims for the lane `high` alone. Time is an argument.

Such a claim is called urgent, and one for all lanes open. `batcher.py` asks before each urgent claim, and
notes every claim.
"""

URGENT_S = 0.1
"""Seconds between two urgent claims of a queue. A request of the lane `high` waits at most about so
long for its claim while the engine has a place for it."""

MAX_URGENT_S = 1.0
"""Seconds for which urgent claims may take the places that wait for a gulp or a refill. Then these places
wait for an open claim, so that a flood of `high` requests takes no turn from the other lanes."""


class UrgentClaims:
    """What the past claims of a worker say about its next urgent claim."""

    def __init__(self) -> None:
        self._claimed_s: dict[object, float] = {}  # moment of each queue's last claim
        self._taking_since_s: float | None = None  # first urgent requests since the last open claim

    def is_due(self, queue: object, now_s: float) -> bool:
        """Return whether a queue may have requests of the lane `high` that the last claim did not see.

        Args:
            queue: Queue to claim from.
            now_s: Monotonic time in seconds.
        """
        return now_s - self._claimed_s.get(queue, float("-inf")) >= URGENT_S

    def must_leave_waiting_places(self, now_s: float) -> bool:
        """Return whether urgent claims must leave the places that wait to an open claim."""
        return self._taking_since_s is not None and now_s - self._taking_since_s >= MAX_URGENT_S

    def note_open(self, queue: object, now_s: float) -> None:
        """Note a claim for all lanes, which take `high` first."""
        self._claimed_s[queue] = now_s
        self._taking_since_s = None

    def note_urgent(self, queue: object, now_s: float, size: int, num_taken: int) -> None:
        """Note a claim for the lane `high` alone; the next is due at once if this one took its full size.

        Args:
            queue: Queue that was asked.
            now_s: Monotonic time of the claim in seconds.
            size: Requests that the claim could take.
            num_taken: Requests that it took.
        """
        if num_taken < size:
            self._claimed_s[queue] = now_s
        if num_taken and self._taking_since_s is None:
            self._taking_since_s = now_s
