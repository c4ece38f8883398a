"""Who puts jobs into RQ: one call a kind of job, each made once however many stewards make it."""

import time
from functools import partial
from typing import Any

from redis import Redis
from rq.exceptions import DuplicateJobError
from rq.job import Retry
from rq.queue import Queue
from rq.scheduler import RQScheduler

from gristmill.producer.steward.turn import ALARM_MARGIN_S, MAX_RUN_S

JOB_TIMEOUT_S = int(MAX_RUN_S + ALARM_MARGIN_S) + 30
LONG_JOB_TIMEOUT_S = 6 * 3600
"""For the phases that cannot pause: they read or write a whole file, and cut short they begin anew."""

LONG_PHASES = ("validate", "finalize")

RESULT_TTL_S = 60
FAILURE_TTL_S = 3 * 24 * 3600

ANNOUNCE_TIMEOUT_S = 90
ANNOUNCE_FAILURE_TTL_S = 24 * 3600
"""A job for a webhook is unique while its hash lives; one that RQ gave up is made anew after a day."""

RETRY_INTERVALS_S = (30, 120, 600, 1800, 3600, 2 * 3600, 6 * 3600)
"""Waits between the 8 tries of a webhook: 10 hours in all."""


def is_webhook(job_id: str) -> bool:
    """Whether a job calls somebody's server, and so may take as long as that likes."""
    return job_id.startswith("announce-")


def batch_of(job_id: str) -> str:
    """Return the batch in the id of a job; empty for one that has none, or is none of ours."""
    return job_id.split("-", 2)[1] if "-" in job_id else ""


class Schedule:
    """What is in the steward's RQ queue.

    Args:
        queue: The RQ queue.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._scheduler = _Scheduler(queue)

    def waiting(self) -> list[str]:
        """Return the ids of the jobs that wait for a worker."""
        return self._queue.get_job_ids()

    def work_on(self, batch: str, phase: str, runs: int) -> None:
        """Enqueue the next slice of a batch, unless it was.

        Args:
            batch: Its id.
            phase: validate, feed or finalize.
            runs: How often somebody took the batch up: the slice's number.
        """
        minute = int(
            time.time() // 60
        )  # a job that RQ lost before it took the batch up is made anew
        timeout_s = LONG_JOB_TIMEOUT_S if phase in LONG_PHASES else JOB_TIMEOUT_S
        self._enqueue(phase, f"{phase}-{batch}-{runs}-{minute}", batch, job_timeout=timeout_s)

    def announce(self, batch: str) -> None:
        """Enqueue the webhook of a batch, unless it was; RQ repeats it by itself."""
        self._enqueue(
            "announce", f"announce-{batch}", batch,
            job_timeout=ANNOUNCE_TIMEOUT_S, failure_ttl=ANNOUNCE_FAILURE_TTL_S,
            retry=Retry(max=len(RETRY_INTERVALS_S), interval=RETRY_INTERVALS_S),
        )  # fmt: skip

    def sweep(self, interval_s: int) -> None:
        """Enqueue the sweep of this interval, unless it was."""
        number = int(time.time() // interval_s)
        self._enqueue("sweep", f"sweep-{number}", ttl=2 * interval_s, result_ttl=2 * interval_s)

    def enqueue_retry(self) -> None:
        """Enqueue a job whose wait is over, as RQ's scheduler process would."""
        self._scheduler.tick()

    def close(self) -> None:
        """Let another steward's scheduler take over."""
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
    """RQ's scheduler without its process, which would be a fork of ours with threads, and ends with Redis."""

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
        """The queue's: RQ would build one that knows no sentinels."""
        return self._queue_connection

    def tick(self) -> None:
        """Enqueue the job that has been due for longest, if one is."""
        self.acquire_locks()  # type: ignore[no-untyped-call]  # rq's, all of these
        self.enqueue_scheduled_jobs()  # type: ignore[no-untyped-call]

    def prepare_registries(self, queue_names: Any = None) -> None:
        """Take one job at a time out of each registry, where RQ takes a thousand."""
        super().prepare_registries(queue_names)
        for registry in self._scheduled_job_registries:
            one = partial(registry.get_jobs_to_schedule, chunk_size=1)
            registry.get_jobs_to_schedule = one  # type: ignore[method-assign]
