"""How long the running job may keep the steward: one job at a time, and the others wait behind it."""

import time

SLICE_S = 10.0
"""What a job may take while others wait."""

IDLE_S = 1.0
"""What it may take without anything to do while others wait: many batches wait for their answers most of the time."""

MAX_RUN_S = 300.0
"""What it may take while nobody waits; then it is enqueued again, and RQ sees that the steward lives."""

STOP_GRACE_S = 5.0
"""What it may take from SIGTERM on before it is cancelled."""

ALARM_MARGIN_S = 30.0
"""How long before RQ's timeout, whose alarm strikes anywhere in a loop, a job is cancelled."""


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
        self.end()

    def begin(self, timeout_s: float) -> None:
        """Start the clock of a job.

        Args:
            timeout_s: After which RQ would end it.
        """
        self._began_s = time.monotonic()
        self._limit_s = self._began_s + timeout_s - ALARM_MARGIN_S

    def end(self) -> None:
        """Note that no job runs."""
        self._began_s = self._limit_s = float("inf")

    def stop(self) -> None:
        """Tell the process to stop; may be called from a signal handler, and twice."""
        self.is_stopping = True
        self._stop_s = min(self._stop_s, time.monotonic())

    def may_go_on(self, idle_s: float = 0) -> bool:
        """Whether the running job may begin another step.

        Args:
            idle_s: For how long it had nothing to do.
        """
        ran_s = time.monotonic() - self._began_s
        if self.is_stopping or ran_s > MAX_RUN_S:
            return False
        has_its_slice = ran_s < SLICE_S and idle_s < IDLE_S
        return has_its_slice or not self.num_waiting

    @property
    def overdue_s(self) -> float:
        """For how long the running job should have ended; negative while it may run, or none does."""
        return time.monotonic() - min(self._limit_s, self._stop_s + STOP_GRACE_S)
