"""The time slice of the running job.

A steward runs one job at a time, and the others wait behind it.
"""

import time

SLICE_S = 3.0
"""Longest time slice while other jobs wait. Each slice costs some 50 ms, and each newcomer waits for two."""

IDLE_S = 1.0
"""Longest idle time in a time slice while other jobs wait: most of the time, a batch waits for its
answers."""

MAX_RUN_S = 300.0
"""Longest time slice while no other job waits. The next slice then shows RQ that the steward
lives."""

STOP_GRACE_S = 5.0
"""Time from SIGTERM until the running job is cancelled."""

ALARM_MARGIN_S = 30.0
"""Time between the cancellation of a job and RQ's timeout, whose alarm interrupts an event loop
anywhere."""


class Stopped(SystemExit):
    """Raised by a signal while no job runs.

    RQ lets it pass, and no `except Exception` catches it.
    """


class TimeSlice:
    """The clock of the running job, shared by the RQ worker, the dispatcher and the job.

    Safe across threads.

    Attributes:
        is_stopping: True once the process is stopping.
        num_waiting: Jobs that wait, as of the dispatcher's last look.
    """

    def __init__(self) -> None:
        self.is_stopping = False
        self.num_waiting = 0
        self._stop_s = float("inf")
        self.end()

    def begin(self, timeout_s: float) -> None:
        """Start the clock of a job.

        Args:
            timeout_s: Seconds after which RQ's alarm ends the job.
        """
        self._began_s = time.monotonic()
        self._limit_s = self._began_s + timeout_s - ALARM_MARGIN_S

    def end(self) -> None:
        """Stop the clock: no job runs."""
        self._began_s = self._limit_s = float("inf")

    def stop(self) -> None:
        """Stop the process. A signal handler may call this, and may call it twice."""
        self.is_stopping = True
        self._stop_s = min(self._stop_s, time.monotonic())

    def may_go_on(self, idle_s: float = 0) -> bool:
        """Return True if the running job may begin another step.

        Args:
            idle_s: Seconds since the job last had something to do.
        """
        ran_s = time.monotonic() - self._began_s
        if self.is_stopping or ran_s > MAX_RUN_S:
            return False
        is_within_slice = ran_s < SLICE_S and idle_s < IDLE_S
        return is_within_slice or not self.num_waiting

    @property
    def overdue_s(self) -> float:
        """Seconds since the running job had to end; negative before that, or if no job runs."""
        return time.monotonic() - min(self._limit_s, self._stop_s + STOP_GRACE_S)
