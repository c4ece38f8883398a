"""One request on the engine: from its claim to its record, whatever the engine answers.

Each queue has its own; the loop admits what it has claimed; each request then runs in a task of its own and ends here: settled,
given back for a retry, or released.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence

import structlog

from gristmill.shared.connection import retrying
from gristmill.shared.errors import EngineDied, EngineHungUp, EngineUnavailable
from gristmill.shared.operations import Settlement
from gristmill.shared.queue import Queue
from gristmill.shared.records import Claimed
from gristmill.shared.results import response_outcome
from gristmill.worker import batch_policy, metrics
from gristmill.worker.ack_writer import Settler
from gristmill.worker.admission.room import Admission
from gristmill.worker.drain import Drain
from gristmill.worker.engine.interface import Engine, Response
from gristmill.worker.engine.refusals import bounded
from gristmill.worker.in_flight import Held, Run
from gristmill.worker.reports import report_request
from gristmill.worker.settings import WorkerSettings
from gristmill.worker.token_rate import Pace
from gristmill.worker.verdicts import Nack, backoff_s, verdict

log = structlog.get_logger()

MAX_REASON_CHARS = 500

ENGINE_PRIORITY = {"high": -1, "normal": 0, "low": 1}
"""vLLM's: lower runs sooner."""


class Runner:
    """Runs what was claimed.

    Args:
        queue: Where requests come from.
        engine: Runs them.
        held: Where claimed requests are.
        settings: Backoff and limits.
        drain: Ends the pauses.
        admission: Told what goes into the engine, and what it took.
        pace: Told how long each answer took.
        died: Told that the engine died.
        suspect_ended: Told that a suspect ended well.

    Attributes:
        settler: Writes the records.
        num_settled: Requests whose records are written.
    """

    def __init__(
        self,
        queue: Queue,
        engine: Engine,
        held: Held,
        settings: WorkerSettings,
        drain: Drain,
        *,
        admission: Admission,
        pace: Pace,
        died: Callable[[EngineDied], None],
        suspect_ended: Callable[[], None],
    ) -> None:
        self._queue = queue
        self._engine = engine
        self._held = held
        self._admission = admission
        self._pace = pace
        self._settings = settings
        self._drain = drain
        self._died = died
        self._suspect_ended = suspect_ended
        # The one that has just ended still counts as running.
        self.settler = Settler(queue, self._settled, lambda: held.num_running > 1)
        self.num_settled = 0
        self._num_failures = 0

    def admit(self, claimed: Claimed) -> None:
        """Start a request, unless it was aborted or given to others meanwhile."""
        run = self._held.find(claimed)
        if run:
            task = asyncio.create_task(self._run(run))
            leave = self._admission.enter(claimed.record)
            task.add_done_callback(lambda _: leave())
            self._held.start(run, task)

    async def _run(self, run: Run) -> None:
        structlog.contextvars.bind_contextvars(queue=self._queue.keys.queue)  # of this task's lines
        record = run.claimed.record
        priority, started_s = ENGINE_PRIORITY[record.priority], time.monotonic()
        try:
            response = await self._engine.post(record.endpoint, record.body, priority=priority)
        except EngineDied as death:
            self._died(death)
        except EngineUnavailable as error:
            await self._hand_back(run, error)
        except EngineHungUp as error:
            await self._nack(run, _failure("connection_broken", str(error)))
        except Exception as error:
            log.exception("request.run_failed", id=run.claimed.id)
            await self._nack(run, _failure("worker_error", repr(error)))
        else:
            self._num_failures = 0
            self._pace.saw(response, time.monotonic() - started_s)
            await self._settle(run, response)

    async def _hand_back(self, run: Run, error: EngineUnavailable) -> None:
        """Give a request back, uncounted, and hold its slot while the engine recovers."""
        self._num_failures += 1
        pause_s = self._backoff_s(min(self._num_failures, 16))
        log.warning(
            "engine.unavailable", id=run.claimed.id, error=str(error), pause_s=round(pause_s, 3)
        )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._drain.started.wait()
        await self.release([run])

    async def _settle(self, run: Run, response: Response) -> None:
        response = bounded(response, self._settings.max_result_bytes)
        decision = verdict(run.claimed, response)
        if isinstance(decision, Nack):
            await self._nack(run, decision)
            return
        claimed = run.claimed
        outcome = response_outcome(claimed.attempt, run.worker, response.status, response.body)
        settlement = Settlement(
            claimed.id,
            claimed.delivery,
            decision.status,
            outcome,
            response.prompt_tokens,
            response.output_tokens,
        )
        self.settler.settle(run.worker, settlement)
        metrics.settling.inc()
        report_request(run, response, decision.status)
        if decision.status == "succeeded":
            self._admission.learn(claimed.record, response)
        if claimed.crashes:
            self._suspect_ended()

    async def _nack(self, run: Run, decision: Nack) -> None:
        claimed, delay_ms = run.claimed, int(self._backoff_s(run.claimed.attempt) * 1000)
        code = await retrying(
            lambda: self._queue.nack(run.worker, claimed, delay_ms, decision.error)
        )
        self._held.forget([claimed])
        metrics.retried.inc()
        event = "request.dead_lettered" if code == "dead_lettered" else "request.retried"
        log.warning(
            event, id=claimed.id, attempt=claimed.attempt, delay_ms=delay_ms, **decision.error
        )

    def _settled(self, settlements: Sequence[Settlement]) -> None:
        self._held.forget(settlements)
        self.num_settled += len(settlements)
        metrics.settling.dec(len(settlements))

    async def release(self, runs: Sequence[Run]) -> None:
        """Hand requests back to the front of their lanes, uncounted; the last chunk first."""
        starts = range(0, len(runs), batch_policy.MAX_CLAIM)
        for start in reversed(starts):
            chunk = runs[start : start + batch_policy.MAX_CLAIM]
            await self._release_chunk(chunk[0].worker, [run.claimed for run in chunk])

    async def _release_chunk(self, worker: str, items: Sequence[Claimed]) -> None:
        metrics.released.inc(await retrying(lambda: self._queue.release(worker, items)))
        self._held.forget(items)

    def _backoff_s(self, attempt: int) -> float:
        return backoff_s(attempt, self._settings.backoff_base_s, self._settings.backoff_max_s)


def _failure(code: str, reason: str) -> Nack:
    return Nack({"code": code, "message": reason[:MAX_REASON_CHARS]})
