"""RQ's worker, changed to survive the loss of Redis and to stop at a signal.

`work` of RQ 3.0.0 returns when a Redis command fails outside its wait for a job; `process.py` then
calls it again. docs/decisions/0010-rq.md lists each method that is overridden here, and the reason.
"""

from contextlib import suppress
from types import FrameType

import structlog
from redis.exceptions import RedisError
from rq import SimpleWorker
from rq.job import Job
from rq.queue import Queue
from rq.serializers import JSONSerializer
from rq.worker.base import WorkerStatus

from gristmill.producer.steward.rq_connection import shorten_timeouts
from gristmill.producer.steward.time_slice import Stopped, TimeSlice

log = structlog.get_logger()

WORKER_TTL_S = 20
"""This value makes RQ block for 5 s at a time; a dead worker leaves `rq info` after 80 s."""

MAINTENANCE_INTERVAL_S = 60
"""Seconds between two looks of RQ for jobs whose worker died."""


class StewardWorker(SimpleWorker):
    """Runs jobs in this process, one at a time.

    Args:
        queue: The RQ queue of the jobs.
        time_slice: The clock of the running job; a signal stops it.
    """

    log_result_lifespan = False
    max_connection_wait_time = 2.0

    def __init__(self, queue: Queue, time_slice: TimeSlice) -> None:
        super().__init__(
            [queue],
            connection=queue.connection,
            job_class=queue.job_class,
            serializer=JSONSerializer,
            worker_ttl=WORKER_TTL_S,
            maintenance_interval=MAINTENANCE_INTERVAL_S,
            log_job_description=False,
        )
        self._time_slice = time_slice
        self._has_left = False

    def request_stop(self, signum: int, frame: FrameType | None) -> None:
        """Stop after the running job, or at once if no job runs.

        It does not use Redis, unlike RQ's method.

        Raises:
            Stopped: No job runs. It ends `work`.
        """
        self._time_slice.stop()
        self._stop_requested = True
        if self.get_state() != WorkerStatus.BUSY:
            raise Stopped

    def subscribe(self) -> None:
        """Do nothing: RQ's thread for commands ends at the first timeout, with a traceback."""

    def run_maintenance_tasks(self) -> None:
        """Clean up as RQ does.

        A malformed job may make that fail, which must not end the worker.
        """
        try:
            super().run_maintenance_tasks()  # type: ignore[no-untyped-call]  # rq's
        except RedisError:
            raise
        except Exception:
            log.exception("maintenance.failed")

    def execute_job(self, job: Job, queue: Queue) -> None:
        """Run a job within its time slice."""
        self._time_slice.begin(job.timeout or 0)
        try:
            super().execute_job(job, queue)
        finally:
            self._time_slice.end()

    def teardown(self) -> None:
        """Remove the worker from RQ's lists if Redis answers. A second call does nothing."""
        if self._has_left:
            return
        self._has_left = True
        if self._time_slice.is_stopping:
            shorten_timeouts(self.connection)
        with suppress(RedisError, OSError):
            super().teardown()  # type: ignore[no-untyped-call]  # rq's
