"""How long the running job may keep the steward: one job at a time, and the others wait behind it."""

import time

SLICE_S = 10.0
"""What a job may take while others wait."""

MAX_RUN_S = 300.0
"""What it may take while nobody waits; then it is enqueued again, and RQ sees that the steward lives."""

STOP_GRACE_S = 5.0
"""What it may take from SIGTERM on, or beyond `MAX_RUN_S`, before it is cancelled."""


class Stopped(SystemExit):
    """Raised by a signal while no job runs: RQ lets it out, and no `except Exception` on the way keeps it."""


class Turn:
    """What the worker, the dispatcher and the running job tell each other; plain values, safe across threads.

    Attributes:
        is_stopping: Whether the process was told to stop.
        num_waiting: Jobs that wait, as the dispatcher last saw it.
    """

    def __init__(self) -> None:
        self.is_stopping = False
        self.num_waiting = 0
        self._stop_s = float("inf")
        self._began_s = 0.0

    def begin(self) -> None:
        """Start the clock of a job."""
        self._began_s = time.monotonic()

    def stop(self) -> None:
        """Tell the process to stop; may be called from a signal handler, and twice."""
        self.is_stopping = True
        self._stop_s = min(self._stop_s, time.monotonic())

    def may_go_on(self) -> bool:
        """Whether the running job may begin another step."""
        ran_s = time.monotonic() - self._began_s
        if self.is_stopping or ran_s > MAX_RUN_S:
            return False
        return ran_s < SLICE_S or not self.num_waiting

    @property
    def is_overdue(self) -> bool:
        """Whether the running job had all the time to end its step, and did not."""
        now_s = time.monotonic()
        return now_s > min(self._began_s + MAX_RUN_S, self._stop_s) + STOP_GRACE_S
