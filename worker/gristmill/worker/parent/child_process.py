"""Run one life of a worker's process: start it, read its reports, wait for its end."""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

import orjson

from gristmill.shared.tasks import end
from gristmill.worker.parent.child_plan import ChildPlan
from gristmill.worker.parent.parent_link import Report

ENGINE_CHILD = (sys.executable, "-m", "gristmill.worker.parent.engine_child")

CHECK_S = 1.0
"""Seconds between two looks at a worker's reports, which come once a second."""

FIRST_REPORT_S = 60.0
"""Least seconds until the first report: a busy machine takes long to start Python."""

LAST_REPORTS_S = 1.0
"""Most seconds to read the last reports of a dead worker; a process of its engine may hold the pipe open."""


@dataclass(frozen=True, slots=True)
class ChildStart:
    """What the workers of one group of devices share when their processes start.

    Attributes:
        command: Command of a worker's process, without arguments.
        environment: Whole environment of the process, without what the plan adds.
        turn_fd: Open file that the workers lock to start their engine.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    turn_fd: int


class ChildProcess:
    """A worker's process, from its start to its end.

    Attributes:
        report: Last report of the worker; None before the first.
        was_ready: True once the worker has been ready.
        was_silent: True if it was killed because its event loop did not run.
    """

    def __init__(self, process: asyncio.subprocess.Process, reports: asyncio.StreamReader) -> None:
        self._process = process
        self._num_reports = 0
        self._reading = asyncio.create_task(self._read(reports))
        self.report: Report | None = None
        self.was_ready = False
        self.was_silent = False

    @classmethod
    async def start(cls, plan: ChildPlan, start: ChildStart) -> Self:
        """Start the process in a session of its own, so that Ctrl-C reaches the parent alone.

        Raises:
            OSError: The system starts no process now: too many processes, or too little memory.
        """
        reader, writer = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *start.command,
                *_arguments(plan, writer, start.turn_fd),
                stdin=asyncio.subprocess.DEVNULL,
                env={**start.environment, **plan.environment},
                pass_fds=(writer, start.turn_fd),
                start_new_session=True,
            )
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        return cls(process, await _stream(reader))

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def ended(self, silence_s: float) -> int:
        """Wait for the end of the process, and kill it if it is silent; return its exit code.

        The silence is counted in looks, not read from a clock: a parent that was stopped for an hour
        has not listened for an hour.

        Args:
            silence_s: Seconds without a report after which the worker counts as hanging.
        """
        waiting = asyncio.create_task(self._process.wait())
        num_silent, num_heard = 0, 0
        while not waiting.done():
            await asyncio.wait([waiting], timeout=CHECK_S)
            num_silent = 0 if self._num_reports > num_heard else num_silent + 1
            num_heard = self._num_reports
            limit_s = silence_s if num_heard else max(silence_s, FIRST_REPORT_S)
            if num_silent * CHECK_S > limit_s and not waiting.done():
                self.was_silent = True
                self._process.kill()
        await asyncio.wait([self._reading], timeout=LAST_REPORTS_S)
        await end(self._reading)
        return waiting.result()

    async def _read(self, reports: asyncio.StreamReader) -> None:
        async for line in reports:
            self.report = Report(**orjson.loads(line))
            self.was_ready = self.was_ready or self.report.unready_reason is None
            self._num_reports += 1


def _arguments(plan: ChildPlan, report_fd: int, turn_fd: int) -> list[str]:
    """Return what `engine_child.main` parses."""
    words = ["--engine", plan.engine, "--parent", str(os.getpid())]
    words += ["--report-fd", str(report_fd), "--turn-fd", str(turn_fd)]
    words += ["--num-sharing", str(plan.num_sharing)]
    if plan.cores:
        words += ["--cores", ",".join(map(str, plan.cores))]
    return [*words, "--", *plan.flags]


async def _stream(descriptor: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", buffering=0)
    )
    return reader
