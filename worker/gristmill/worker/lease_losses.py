"""Decide what a worker that loses its lease again and again may claim.

Each loss makes suspects of what the worker held. If it claims a suspect and loses the lease again, the
queue may blame that suspect. The worker's own clock or process is more likely the cause. `lease.py`
notes the losses, and `queue_source.py` asks before each claim.
"""

import math

import structlog

from gristmill.shared.brakes import LEASE_LOST, Brake
from gristmill.worker.liveness import Liveness

log = structlog.get_logger()

MAX_LOSSES = 3
"""Losses in a row from which the worker claims nothing for a while."""

MAX_DOUBLINGS = 6
"""Doublings after which the pause grows no more: 16 minutes with the default lease."""

STEADY_LEASES = 10
"""Leases that the worker must hold after a pause, so that the next loss is the first one again."""

CAUSE = "its process or its clock stopped for longer than a lease"
REMEDY = "give it more CPU, keep its host from sleeping, or raise GRISTMILL_LEASE_S"


class LeaseLosses:
    """The losses of one worker's lease on one queue.

    After a loss the worker claims no suspects for one lease. Each further loss in a row doubles this
    pause. From `MAX_LOSSES` on, it claims nothing during the pause.

    Args:
        queue: Name of the queue.
        lease_s: Seconds of a lease.
        liveness: Record in which probes and heartbeats find the reason.

    Attributes:
        number: Losses in a row.
    """

    def __init__(self, queue: str, lease_s: float, liveness: Liveness) -> None:
        self._queue = queue
        self._lease_s = lease_s
        self._liveness = liveness
        self._lost_s = -math.inf
        self.number = 0

    @property
    def pause_s(self) -> float:
        """Seconds without suspects after the last loss."""
        return float(self._lease_s * 2 ** min(self.number - 1, MAX_DOUBLINGS))

    def note(self, now_s: float) -> None:
        """Note a loss at a moment, in monotonic seconds."""
        if now_s - self._lost_s > self.pause_s + STEADY_LEASES * self._lease_s:
            self.number = 0
        self.number += 1
        self._lost_s = now_s
        if self.number >= MAX_LOSSES:
            message = f"{CAUSE}; it claims nothing for {self.pause_s:,.0f} s"
            brake = Brake(LEASE_LOST, self.number, self.number, message, "")
            self._liveness.lease_brakes[self._queue] = brake
            log.error(
                "claims.paused",
                queue=self._queue,
                reason=brake.in_words(),
                pause_s=self.pause_s,
                remedy=REMEDY,
            )

    def may_claim(self, now_s: float) -> bool:
        """Return whether the worker may claim anything."""
        if self.number >= MAX_LOSSES and self._is_pausing(now_s):
            return False
        if self._liveness.lease_brakes.pop(self._queue, None):
            log.info("claims.resumed", queue=self._queue)
        return True

    def suspect_width(self, width: int, now_s: float) -> int:
        """Return how many suspects may run at the same time: `width`, or 0 during a pause."""
        return 0 if self._is_pausing(now_s) else width

    def _is_pausing(self, now_s: float) -> bool:
        return now_s < self._lost_s + self.pause_s
