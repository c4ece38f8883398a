"""The steward's queue in RQ. Each kind of job has one method that enqueues it.

A job exists once, even if several stewards enqueue it at the same time.
"""

import time
from functools import partial
from typing import Any

from redis import Redis
from rq.exceptions import DuplicateJobError
from rq.job import Retry
from rq.queue import Queue
from rq.scheduler import RQScheduler
from rq.serializers import JSONSerializer

from gristmill.producer.steward.job_registry import AllowedJob
from gristmill.producer.steward.time_slice import ALARM_MARGIN_S, MAX_RUN_S

JOB_TIMEOUT_S = int(MAX_RUN_S + ALARM_MARGIN_S) + 30
LONG_JOB_TIMEOUT_S = 6 * 3600
"""Timeout of the phases in `LONG_PHASES`. They read or write a whole file. They cannot pause, and
restart if cut off."""

LONG_PHASES = ("validate", "finalize")

RESULT_TTL_S = 60
FAILURE_TTL_S = 3 * 24 * 3600

ANNOUNCE_TIMEOUT_S = 90
ANNOUNCE_FAILURE_TTL_S = 24 * 3600
"""Lifetime of a failed webhook job. Its id is unique while its hash lives, so a new job follows
after a day."""

RETRY_INTERVALS_S = (30, 120, 600, 1800, 3600, 2 * 3600, 6 * 3600)
"""Seconds between the 8 tries of a webhook: 10 hours in all."""


def is_webhook(job_id: str) -> bool:
    """Return True if a job calls a tenant's server, which may answer slowly."""
    return job_id.startswith("announce-")


def batch_of(job_id: str) -> str:
    """Return the batch in a job's id; empty for a job without a batch and for a foreign id."""
    return job_id.split("-", 2)[1] if "-" in job_id else ""


def rq_queue_of(connection: Any, gristmill_queue: str, job_class: type[AllowedJob]) -> Queue:
    """Return the RQ queue of one Gristmill queue.

    Its name keeps it apart from other users of RQ.
    """
    return Queue(
        f"gristmill-{gristmill_queue}",
        connection=connection,
        job_class=job_class,
        serializer=JSONSerializer,
    )


class JobQueue:
    """Enqueues the steward's jobs.

    Args:
        queue: The RQ queue; only one thread may use its connection.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._scheduler = _Scheduler(queue)

    def waiting(self) -> list[str]:
        """Return the ids of the jobs that wait for a worker."""
        return self._queue.get_job_ids()

    def work_on(self, batch: str, phase: str, num_slices: int) -> None:
        """Enqueue the next time slice of a batch, unless it is enqueued.

        Args:
            batch: Id of the batch.
            phase: validate, execute or finalize.
            num_slices: Time slices of the batch that stewards began so far.
        """
        # The minute makes a new id: RQ may lose a job before a steward takes the batch up.
        minute = int(time.time() // 60)
        timeout_s = LONG_JOB_TIMEOUT_S if phase in LONG_PHASES else JOB_TIMEOUT_S
        self._enqueue(phase, f"{phase}-{batch}-{num_slices}-{minute}", batch, job_timeout=timeout_s)

    def announce(self, batch: str) -> None:
        """Enqueue the webhook of a batch, unless it is enqueued. RQ repeats it."""
        self._enqueue(
            "announce", f"announce-{batch}", batch,
            job_timeout=ANNOUNCE_TIMEOUT_S, failure_ttl=ANNOUNCE_FAILURE_TTL_S,
            retry=Retry(max=len(RETRY_INTERVALS_S), interval=RETRY_INTERVALS_S),
        )  # fmt: skip

    def sweep(self, interval_s: int) -> None:
        """Enqueue the sweep of this interval, unless it is enqueued."""
        number = int(time.time() // interval_s)
        self._enqueue("sweep", f"sweep-{number}", ttl=2 * interval_s, result_ttl=2 * interval_s)

    def enqueue_retry(self) -> None:
        """Enqueue one job whose retry is due, as RQ's scheduler process would."""
        self._scheduler.tick()

    def close(self) -> None:
        """Release the scheduler's lock for another steward."""
        self._scheduler.release_locks()  # type: ignore[no-untyped-call]  # rq's

    def _enqueue(self, name: str, job_id: str, *arguments: str, **options: Any) -> None:
        defaults = {
            "job_timeout": JOB_TIMEOUT_S, "result_ttl": RESULT_TTL_S, "failure_ttl": FAILURE_TTL_S,
        }  # fmt: skip
        try:
            self._queue.enqueue(
                name, *arguments, job_id=job_id, description=job_id, unique=True,
                **(defaults | options),
            )  # fmt: skip
        except DuplicateJobError:
            return


class _Scheduler(RQScheduler):
    """RQ's scheduler without its process.

    RQ would fork the steward with its threads, and the fork would end when Redis fails.
    """

    def __init__(self, queue: Queue) -> None:
        super().__init__(
            [queue],
            connection=queue.connection,
            logging_level="WARNING",
            serializer=queue.serializer,
        )
        self._queue_connection: Redis = queue.connection

    @property
    def connection(self) -> Redis:
        """The queue's connection. RQ would make a new one, without support for Sentinel."""
        return self._queue_connection

    def tick(self) -> None:
        """Enqueue the job that has been due for the longest time, if any."""
        self.acquire_locks()  # type: ignore[no-untyped-call]  # rq's, all of these
        self.enqueue_scheduled_jobs()  # type: ignore[no-untyped-call]

    def prepare_registries(self, queue_names: Any = None) -> None:
        """Make each registry return one job at a time; RQ takes a thousand."""
        super().prepare_registries(queue_names)
        for registry in self._scheduled_job_registries:
            one = partial(registry.get_jobs_to_schedule, chunk_size=1)
            registry.get_jobs_to_schedule = one  # type: ignore[method-assign]
