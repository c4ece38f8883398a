"""RQ's worker, made to outlive its Redis and to stop when it is told.

RQ 3.0.0's `work` returns when a command times out or fails while no job is being waited for, so the
process calls it again; docs/decisions/0010-rq.md lists what is overridden here and why.
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

from gristmill.producer.steward.connection import hurry
from gristmill.producer.steward.turn import Stopped, Turn

log = structlog.get_logger()

WORKER_TTL_S = 20
"""RQ then blocks for 5 s at a time, and a worker that died leaves `rq info` after 80 s."""

MAINTENANCE_INTERVAL_S = 60
"""How often RQ looks for jobs whose worker died."""


class StewardWorker(SimpleWorker):
    """Runs jobs in this process, one at a time.

    Args:
        queue: From which RQ queue.
        turn: Is told when the process has to stop.
    """

    log_result_lifespan = False
    max_connection_wait_time = 2.0

    def __init__(self, queue: Queue, turn: Turn) -> None:
        super().__init__(
            [queue],
            connection=queue.connection,
            job_class=queue.job_class,
            serializer=JSONSerializer,
            worker_ttl=WORKER_TTL_S,
            maintenance_interval=MAINTENANCE_INTERVAL_S,
            log_job_description=False,
        )
        self._turn = turn
        self._has_left = False

    def request_stop(self, signum: int, frame: FrameType | None) -> None:
        """Stop after the running job, or now if there is none; asks nothing of Redis, unlike RQ's own.

        Raises:
            Stopped: No job runs; it ends `work`.
        """
        self._turn.stop()
        self._stop_requested = True
        if self.get_state() != WorkerStatus.BUSY:
            raise Stopped

    def subscribe(self) -> None:
        """Listen to no commands: RQ's thread for them ends at the first time-out, with a traceback."""

    def run_maintenance_tasks(self) -> None:
        """Clean up as RQ does; what fails there, for a job that is none, must not end the worker."""
        try:
            super().run_maintenance_tasks()  # type: ignore[no-untyped-call]  # rq's
        except RedisError:
            raise
        except Exception:
            log.exception("maintenance.failed")

    def execute_job(self, job: Job, queue: Queue) -> None:
        """Run a job in its turn."""
        self._turn.begin(job.timeout or 0)
        try:
            super().execute_job(job, queue)
        finally:
            self._turn.end()

    def teardown(self) -> None:
        """Leave RQ's lists, once, if Redis is there to tell it."""
        if self._has_left:
            return
        self._has_left = True
        if self._turn.is_stopping:
            hurry(self.connection)
        with suppress(RedisError, OSError):
            super().teardown()  # type: ignore[no-untyped-call]  # rq's
