"""RQ jobs that can only be ours: what stands in Redis names one of a few functions and gives it one string.

RQ itself resolves the function, the callbacks and the webhooks of a job from its hash, so whoever can
write to Redis could run anything; here nothing is imported and nothing is called by what a hash says.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import structlog
from rq.exceptions import NoSuchJobError
from rq.job import Job
from rq.queue import Queue
from rq.serializers import JSONSerializer

from gristmill.shared.errors import GristmillError

log = structlog.get_logger()


class JobRefused(GristmillError):
    """A job that stands in our RQ queue is none of ours."""


@dataclass(frozen=True, slots=True)
class Call:
    """What a job asks for.

    Attributes:
        job: Its id.
        name: Of the function.
        batch: Its one argument; empty for none.
        is_last_try: Whether RQ will not repeat it if it fails.
    """

    job: str
    name: str
    batch: str
    is_last_try: bool


class AllowedJob(Job):
    """A job whose function is found by its name in an allow-list; see `allow`."""

    functions: ClassVar[Mapping[str, Callable[[Call], None]]] = {}

    def perform(self) -> None:
        """Run the job, in place of RQ's way over `func`.

        Raises:
            JobRefused: It asks for what is not in the list.
        """
        call = self._call()
        self.functions[call.name](call)

    def _call(self) -> Call:
        name, arguments = self.func_name, list(self.args)
        is_ours = isinstance(name, str) and name in self.functions and not self.kwargs
        if not is_ours or len(arguments) > 1 or not all(isinstance(a, str) for a in arguments):
            log.error("job.refused", job=self.id, queue=self.origin)
            raise JobRefused(f"job {self.id} is none of the steward's; nothing was run")
        batch = arguments[0] if arguments else ""
        return Call(self.id, str(name), batch, not self.should_retry)

    def restore(self, raw_data: Any) -> None:
        """Read a job from its hash; one that cannot be read does not exist.

        Raises:
            NoSuchJobError: RQ then skips it, where any other error would end the worker, again and again.
        """
        try:
            super().restore(raw_data)
        except Exception as error:
            raise NoSuchJobError("unreadable") from error
        self.webhooks = []

    @property
    def func(self) -> None:
        """Nothing: RQ would import what the hash names."""
        return

    @property
    def success_callback(self) -> None:
        """None, likewise."""
        return

    @property
    def failure_callback(self) -> None:
        """None, likewise."""
        return

    @property
    def stopped_callback(self) -> None:
        """None, likewise."""
        return


def allow(functions: Mapping[str, Callable[[Call], None]]) -> type[AllowedJob]:
    """Return a class of jobs that run these functions and no others."""
    return type("StewardJob", (AllowedJob,), {"functions": functions})


def queue_of(connection: Any, gristmill_queue: str, job_class: type[AllowedJob]) -> Queue:
    """Return the RQ queue of one Gristmill queue; its name keeps it apart from other users of RQ."""
    return Queue(
        f"gristmill-{gristmill_queue}",
        connection=connection,
        job_class=job_class,
        serializer=JSONSerializer,
    )
