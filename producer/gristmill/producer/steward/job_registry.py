"""The registry of allowed jobs. An RQ job names one of its functions and one string argument.

RQ itself resolves a job's function, callbacks and webhooks from the job's hash in Redis. A client
that can write to Redis could then run any code. Here the steward imports and calls nothing that a
hash names.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import structlog
from rq.exceptions import NoSuchJobError
from rq.job import Job

from gristmill.producer.steward.time_slice import TimeSlice
from gristmill.shared.errors import GristmillError
from gristmill.shared.tasks import end

log = structlog.get_logger()

POLL_S = 0.5
"""Time between two checks whether a job is overdue."""


class JobRefused(GristmillError):
    """A job in the steward's RQ queue asks for something that the registry does not allow."""


class JobOverdue(GristmillError):
    """A job exceeded its time and was cancelled; its commits stay."""


@dataclass(frozen=True, slots=True)
class JobCall:
    """The arguments of a job's function.

    Attributes:
        job: Id of the job.
        name: Name of the function.
        batch: Id of the batch; empty for a job without one.
    """

    job: str
    name: str
    batch: str


JobFunction = Callable[[JobCall], Coroutine[Any, Any, None]]


class AllowedJob(Job):
    """An RQ job that runs a function of a registry; `JobRegistry.job_class` has the functions."""

    functions: ClassVar[Mapping[str, Callable[[JobCall], None]]] = {}

    def perform(self) -> None:
        """Run the job. It replaces RQ's method, which calls `func`.

        Raises:
            JobRefused: The registry does not allow the job.
        """
        call = self._call()
        self.functions[call.name](call)

    def _call(self) -> JobCall:
        name, arguments = self.func_name, list(self.args)
        is_allowed = isinstance(name, str) and name in self.functions and not self.kwargs
        if not is_allowed or len(arguments) > 1 or not all(isinstance(a, str) for a in arguments):
            log.error("job.refused", job=self.id, queue=self.origin)
            raise JobRefused(f"job {self.id} is none of the steward's; nothing was run")
        batch = arguments[0] if arguments else ""
        return JobCall(self.id, str(name), batch)

    def restore(self, raw_data: Any) -> None:
        """Read a job from its hash; an unreadable hash counts as missing.

        Raises:
            NoSuchJobError: RQ then skips the job. Any other error would end the worker again and
                again.
        """
        try:
            super().restore(raw_data)
        except Exception as error:
            raise NoSuchJobError("unreadable") from error
        self.webhooks = []

    @property
    def func(self) -> None:
        """Always None: RQ would import the function that the hash names."""
        return

    @property
    def success_callback(self) -> None:
        """Always None, for the same reason."""
        return

    @property
    def failure_callback(self) -> None:
        """Always None, for the same reason."""
        return

    @property
    def stopped_callback(self) -> None:
        """Always None, for the same reason."""
        return


class JobRegistry:
    """The functions that jobs may run, each under a short name.

    Args:
        time_slice: Limits the time of each job.
        functions: The coroutine function of each name.

    Attributes:
        job_class: RQ jobs that run these functions and no others.
    """

    def __init__(self, time_slice: TimeSlice, functions: Mapping[str, JobFunction]) -> None:
        self.time_slice = time_slice
        runs = {name: partial(self._run, function) for name, function in functions.items()}
        self.job_class: type[AllowedJob] = type("StewardJob", (AllowedJob,), {"functions": runs})

    def _run(self, function: JobFunction, call: JobCall) -> None:
        """Run a job's function in a new event loop, and log its start and end."""
        began_s = time.monotonic()
        job_log = log.bind(job=call.job, batch=call.batch or None)
        job_log.info("job.started")
        try:
            asyncio.run(self._within_time(function(call)))
        except JobOverdue as error:
            job_log.warning("job.postponed", reason=str(error))
            raise
        except Exception:
            job_log.exception("job.failed")
            raise
        job_log.info("job.finished", duration_s=round(time.monotonic() - began_s, 3))

    async def _within_time(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        while not (await asyncio.wait([task], timeout=POLL_S))[0]:
            if self.time_slice.overdue_s > 0:
                await end(task)
                raise JobOverdue("it did not end within its time; what it had committed stays")
        await task
