"""Keep one of several workers alive: start it, restart it when it died, give it up.

A worker restarts its engine itself (`supervisor.py`). This module handles the death of the worker's
process, and a process that hangs.
"""

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress

import structlog

from gristmill.worker.death_count import DeathCount
from gristmill.worker.engine.vllm.exits import describe_exit
from gristmill.worker.exit_codes import EXIT_ENGINE, EXIT_OK, EXIT_SETTINGS
from gristmill.worker.parent.child_plan import ChildPlan
from gristmill.worker.parent.child_process import ChildProcess, ChildStart
from gristmill.worker.settings import WorkerSettings

log = structlog.get_logger()

GAVE_UP = (EXIT_ENGINE, EXIT_SETTINGS)
"""Exit codes of a worker that has given up by itself."""


class Child:
    """Keeps one worker alive until the parent stops, or until its queues are empty if it should end then.

    Args:
        plan: Plan of the worker.
        start: What its process needs to start.
        settings: Settings of the parent, with the stall timeout and the backoff.
        stopping: Event that is set when the parent stops.
        has_sibling_up: Returns whether another worker of the parent is up.

    Attributes:
        num_restarts: Restarts so far.
        is_starting: True while the worker's process starts; `pid` may not name it yet.
        has_finished: True if the worker has ended because its queues are empty.
    """

    def __init__(
        self,
        plan: ChildPlan,
        start: ChildStart,
        settings: WorkerSettings,
        stopping: asyncio.Event,
        has_sibling_up: "Callable[[Child], bool]",
    ) -> None:
        self.engine = plan.engine
        self.num_restarts = 0
        self.is_starting = False
        self.has_finished = False
        self._plan, self._start = plan, start
        self._silence_s = settings.stall_timeout_s
        self._may_finish = settings.until_empty
        self._stopping = stopping
        self._has_sibling_up = has_sibling_up
        self._deaths = DeathCount(settings.backoff_base_s, settings.backoff_max_s)
        self._process: ChildProcess | None = None

    async def run(self) -> int:
        """Keep the worker alive; return 0 after a drain, or the exit code with which it is given up.

        A drain that no signal started is an end too if the worker may end when its queues are empty.
        """
        while not (self.has_finished or self._stopping.is_set()):
            self._process = process = await self._started()
            code = await self._ended(process) if process else EXIT_OK
            if self._stopping.is_set():
                log.info("worker.ended", engine=self.engine, exit_code=code)
            elif self._may_finish and process and code == EXIT_OK:
                log.info("worker.ended", engine=self.engine, exit_code=code)
                self.has_finished = True
            elif self._is_hopeless(process, code):
                return code if code in GAVE_UP else EXIT_ENGINE
            else:
                await self._pause(process, code)
                self.num_restarts += process is not None
        return EXIT_OK

    def send_signal(self, number: int) -> None:
        """Send a signal to the worker, if it runs."""
        if self._process:
            self._process.send_signal(number)

    @property
    def pid(self) -> int | None:
        """Process id of the worker, if it runs."""
        return self._process.pid if self._process else None

    @property
    def is_up(self) -> bool:
        """True from the first time that the worker was ready until its process ends."""
        return self._process is not None and self._process.was_ready

    @property
    def is_ready(self) -> bool:
        """True if the worker's last report says that it claims."""
        return self.unready_reason is None

    @property
    def unready_reason(self) -> str | None:
        """Why the worker is not ready; None if it is ready."""
        process = self._process
        if process is None:
            return "its queues are empty" if self.has_finished else "its process has ended"
        return (
            process.report.unready_reason if process.report else "waiting for its process to start"
        )

    @property
    def health_port(self) -> int | None:
        """Loopback port of the worker's metrics; None while it has none."""
        process = self._process
        return process.report.health_port if process and process.report else None

    @property
    def num_running(self) -> int:
        """Requests in the worker's engine, as its last report says."""
        process = self._process
        return process.report.num_running if process and process.report else 0

    async def _started(self) -> ChildProcess | None:
        """Start the worker's process; return None if the system refuses it."""
        self.is_starting = True
        try:
            process = await ChildProcess.start(self._plan, self._start)
        except OSError as error:
            log.warning("worker.start_refused", engine=self.engine, error=str(error))
            return None
        finally:
            self.is_starting = False
        log.info("worker.started", engine=self.engine, pid=process.pid)
        return process

    async def _ended(self, process: ChildProcess) -> int:
        """Wait for the end of the process; return its exit code."""
        if self._stopping.is_set():  # the signal came while the process started
            process.send_signal(signal.SIGTERM)
        code = await process.ended(self._silence_s)
        self._process = None
        return code

    def _is_hopeless(self, process: ChildProcess | None, code: int) -> bool:
        """Count the death; return whether to give the worker up. A refused start is a death too.

        A worker whose first start fails is given up at once, as a single worker would end. Later a worker
        is given up only while no other one is up: a broken device must not stop the others. A restart that
        fails is only a death: the dead engine may not have freed its memory yet.
        """
        report = process.report if process else None
        was_ready = process is not None and process.was_ready
        self._deaths.add(has_settled=bool(report and report.num_settled))
        is_first = not self.num_restarts
        has_given_up = code in GAVE_UP and (is_first or was_ready)
        if has_given_up and not was_ready:
            return True
        return (has_given_up or self._deaths.is_hopeless) and not self._has_sibling_up(self)

    async def _pause(self, process: ChildProcess | None, code: int) -> None:
        pause_s = self._deaths.pause_s()
        log.error(
            "worker.died",
            engine=self.engine,
            pid=process.pid if process else None,
            error=_reason(process, code),
            num_deaths=self._deaths.number,
            pause_s=round(pause_s, 3),
        )
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), pause_s)


def _reason(process: ChildProcess | None, code: int) -> str:
    if process is None:
        return "the system refused to start its process"
    return "its event loop did not run" if process.was_silent else describe_exit("it", code)
