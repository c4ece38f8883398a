"""The workers of one `gristmill run`; `Submission` starts them once the input has passed its checks."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from gristmill.local.own_workers import running_workers
from gristmill.local.run.engine_plan import EnginePlan
from gristmill.local.run.own_queue import OwnQueue
from gristmill.producer.commands.resume import kept_in_words
from gristmill.producer.commands.run_workers import WatchWorkers
from gristmill.shared.errors import GristmillError
from gristmill.worker.flag_secrets import secret_flags


class RunEngines:
    """Workers of one run; see `RunWorkers`.

    Args:
        queue: Their queue.
        plan: Their engines.
        log: File for their output.
    """

    def __init__(self, queue: OwnQueue, plan: EnginePlan, log: Path) -> None:
        self._queue = queue
        self._plan = plan
        self.log = log
        self.facts: Mapping[str, Any] = plan.facts
        self.hidden_flags: Sequence[str] = secret_flags(plan.flags)

    @contextmanager
    def running(self) -> Iterator[WatchWorkers]:
        """See `RunWorkers`."""
        if self._queue.has_old_data:
            self._queue.delete()
        with running_workers(
            self._queue.settings,
            self._plan.flags,
            self.log,
            self._plan.environment,
            options=self._plan.options,
            server=self._queue.server,
        ) as lost:
            yield partial(self._with_way_on, lost)

    async def _with_way_on(self, lost: WatchWorkers) -> NoReturn:
        kept = "" if self._queue.server else f"{kept_in_words(self._queue.settings.queue)}; "
        try:
            await lost()
        except GristmillError as error:
            message = f"{error}\nWritten rows stay; {kept}the same command resumes the run."
            raise type(error)(message) from None
