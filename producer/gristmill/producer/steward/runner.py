"""Runs one job of the steward: a loop of its own, bounded by its turn, told in the log."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import structlog

from gristmill.producer.steward.allowed import Call
from gristmill.producer.steward.turn import Turn
from gristmill.shared.errors import GristmillError
from gristmill.shared.tasks import end

log = structlog.get_logger()

POLL_S = 0.5
"""How often a job is asked whether it is overdue."""

Function = Callable[[Call], Coroutine[Any, Any, None]]


class JobOverdue(GristmillError):
    """A job took longer than its turn and was cancelled; what it had committed stays."""


class TryAgain(GristmillError):
    """A job could not do its work yet; RQ repeats it after a while."""


class Runner:
    """Makes RQ's functions of coroutines.

    Args:
        turn: How long each may run.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn

    def functions(self, functions: Mapping[str, Function]) -> Mapping[str, Callable[[Call], None]]:
        """Return what RQ runs for each name."""
        return {name: self._runs(function) for name, function in functions.items()}

    def _runs(self, function: Function) -> Callable[[Call], None]:
        def run(call: Call) -> None:
            began_s = time.monotonic()
            told = log.bind(job=call.job, batch=call.batch or None)
            told.info("job.started")
            try:
                asyncio.run(self._within_turn(function(call)))
            except (TryAgain, JobOverdue) as error:
                told.warning("job.postponed", reason=str(error))
                raise
            except Exception:
                told.exception("job.failed")
                raise
            told.info("job.finished", duration_s=round(time.monotonic() - began_s, 3))

        return run

    async def _within_turn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        while not (await asyncio.wait([task], timeout=POLL_S))[0]:
            if self._turn.overdue_s > 0:
                await end(task)
                raise JobOverdue("it did not end within its time; what it had committed stays")
        await task
