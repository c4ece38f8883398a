"""The steward's queue in RQ. Each kind of job has one method that enqueues it.

A job exists once, even if several stewards enqueue it at the same time.
"""

import re
import time
from typing import Any

from rq.exceptions import DuplicateJobError
from rq.queue import Queue
from rq.serializers import JSONSerializer

from gristmill.producer.steward.job_registry import AllowedJob
from gristmill.producer.steward.time_slice import ALARM_MARGIN_S, MAX_RUN_S

JOB_TIMEOUT_S = int(MAX_RUN_S + ALARM_MARGIN_S) + 30
RESULT_TTL_S = 60
FAILURE_TTL_S = 3 * 24 * 3600

_ODD = re.compile(r"[^A-Za-z0-9_-]")
"""Characters that the id of an RQ job may not have; the id of a child ends in `@` and its queue."""


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

    def num_waiting(self) -> int:
        """Return the number of jobs that wait for a worker."""
        return self._queue.count

    def work_on(self, batch: str, phase: str, num_slices: int) -> bool:
        """Enqueue the next time slice of a batch; return False if it is enqueued already.

        Args:
            batch: Id of the batch.
            phase: validate or execute.
            num_slices: Time slices of the batch that stewards began so far.
        """
        # The minute makes a new id: RQ may lose a job before a steward takes the batch up.
        minute = int(time.time() // 60)
        name = _ODD.sub(lambda odd: f"_{ord(odd[0]):x}_", batch)
        return self._enqueue(phase, f"{phase}-{name}-{num_slices}-{minute}", batch)

    def sweep(self, interval_s: int) -> None:
        """Enqueue the sweep of this interval, unless it is enqueued."""
        number = int(time.time() // interval_s)
        self._enqueue("sweep", f"sweep-{number}", ttl=2 * interval_s, result_ttl=2 * interval_s)

    def _enqueue(self, name: str, job_id: str, *arguments: str, **options: Any) -> bool:
        defaults = {
            "job_timeout": JOB_TIMEOUT_S, "result_ttl": RESULT_TTL_S, "failure_ttl": FAILURE_TTL_S,
        }  # fmt: skip
        try:
            self._queue.enqueue(
                name, *arguments, job_id=job_id, description=job_id, unique=True,
                **(defaults | options),
            )  # fmt: skip
        except DuplicateJobError:
            return False
        return True
