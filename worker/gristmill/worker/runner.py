"""Run claimed requests on the engine, and settle each according to the engine's answer.

The loop starts requests of all queues here. Each request runs in a separate task, which ends with
an ack, a nack or a release. If the engine dies, the task ends without one, and the loop reports the
death to the queues.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus

import structlog

from gristmill.shared.errors import EngineDied, EngineHungUp, EngineUnavailable
from gristmill.shared.trace_context import trace_id_of
from gristmill.worker.context import WorkerContext
from gristmill.worker.engine.interface import Response
from gristmill.worker.engine.refusals import bounded
from gristmill.worker.engine.streamed_answer import with_stream
from gristmill.worker.failed_tries import FailedTries
from gristmill.worker.failures import Failure, failure_of_error
from gristmill.worker.in_flight import ClaimedRequest
from gristmill.worker.reports import report_request
from gristmill.worker.request_spans import note_response
from gristmill.worker.verdicts import (
    Nack,
    backoff_s,
    verdict,
    verdict_on_broken_connection,
    verdict_on_unavailable,
    verdict_on_worker_error,
)

log = structlog.get_logger()

ENGINE_PRIORITY = {"high": -1, "normal": 0, "low": 1}
"""vLLM's priorities: a lower number runs sooner."""

HAND_BACK_DELAY_S = 0.2
"""Seconds before which nobody claims a request that this worker cannot answer. It is shorter than
this worker's pause (`HAND_BACK_PAUSE_S`), so another worker claims the request first."""


class Runner:
    """Runs requests on one engine.

    Args:
        context: The objects that the worker's parts share.
        died: Called when a request fails because the engine is dead.
    """

    def __init__(self, context: WorkerContext, died: Callable[[EngineDied], None]) -> None:
        self._engine = context.engine
        self._admission = context.admission
        self._load = context.load
        self._limit = context.limit
        self._brake = context.brake
        self._settings = context.settings
        self._provenance = context.provenance
        self._served = context.served
        self._device_time = context.device_time
        self._died = died
        self._tries = FailedTries(context.settings.backoff_max_s)

    def start(self, request: ClaimedRequest) -> None:
        """Start a request, unless it was aborted or given to another worker after its claim."""
        if not request.is_held:
            return
        task = asyncio.create_task(self._run(request))
        leave = self._admission.enter(request.record)
        task.add_done_callback(lambda _: leave())
        request.started(task)

    async def _run(self, request: ClaimedRequest) -> None:
        structlog.contextvars.bind_contextvars(queue=request.queue)  # for this task's log lines
        if trace_id := trace_id_of(request.record.facts):
            structlog.contextvars.bind_contextvars(trace_id=trace_id)
        if self._brake.holds_back(request):
            await request.release()
            return
        started_s = time.monotonic()
        self._limit.enter(request, started_s)
        try:
            response = await self._timed_post(request, started_s)
        except EngineDied as death:
            self._died(death)
        except EngineUnavailable as error:
            await self._put_off(request, error)
        except EngineHungUp as error:
            failure = failure_of_error("connection_broken", error)
            await self._fail(request, failure, verdict_on_broken_connection(error))
        except Exception as error:
            log.exception("request.run_failed", id=request.id)
            failure = failure_of_error("worker_error", error)
            await self._fail(request, failure, verdict_on_worker_error(error))
        else:
            await self._answered(request, response, started_s)
        finally:
            request.close_events()
            self._limit.leave(request)

    async def _timed_post(self, request: ClaimedRequest, started_s: float) -> Response:
        """Return the engine's answer, with the device time that it is charged."""
        self._device_time.enter(started_s)
        try:
            response = await self._traced_post(request)
        except BaseException:
            self._device_time.leave_unanswered(started_s, time.monotonic())
            raise
        num_tokens = response.prompt_tokens + response.output_tokens
        device_ms = self._device_time.leave_answered(started_s, num_tokens, time.monotonic())
        return replace(response, device_ms=device_ms)

    async def _traced_post(self, request: ClaimedRequest) -> Response:
        if request.spans is None:
            return await self._post(request)
        with request.spans.engine() as span:
            response = await self._post(request)
            note_response(span, response)
        return response

    async def _post(self, request: ClaimedRequest) -> Response:
        record = request.record
        body, priority, on_event = record.body, ENGINE_PRIORITY[record.priority], request.on_event
        if on_event is None:
            return await self._engine.post(record.endpoint, body, priority=priority)
        body = with_stream(body, request.stream_options or {}, record.endpoint)
        return await self._engine.post(record.endpoint, body, priority=priority, on_event=on_event)

    async def _answered(
        self, request: ClaimedRequest, response: Response, started_s: float
    ) -> None:
        if await self._is_for_another(request, response):
            await self._hand_back(request)
            return
        self._note_answer(response)
        self._load.token_time.learn(response, time.monotonic() - started_s)
        await self._settle(request, response)

    async def _is_for_another(self, request: ClaimedRequest, response: Response) -> bool:
        """Return whether only other live workers of the queue serve the request's model."""
        record = request.record
        if response.status != HTTPStatus.NOT_FOUND:
            return False
        is_own = self._served.answers(record.model, record.endpoint)
        return not is_own and await request.is_served()

    async def _hand_back(self, request: ClaimedRequest) -> None:
        self._limit.note_handed_back(time.monotonic())
        log.info("request.handed_back", id=request.id, model=request.record.model)
        await request.release(int(HAND_BACK_DELAY_S * 1000))

    def _note_answer(self, response: Response) -> None:
        """Note that the engine serves requests, unless the worker answered or the engine failed."""
        if response.status < HTTPStatus.INTERNAL_SERVER_ERROR and not response.is_refusal:
            self._limit.note_served()
            self._tries.note_served(time.monotonic())

    async def _settle(self, request: ClaimedRequest, response: Response) -> None:
        response = bounded(response, self._settings.max_result_bytes)
        if self._brake.spares_after_answer(request, response):
            await request.release()
            return
        decision = verdict(request.claimed, response)
        if isinstance(decision, Nack):
            await self._nack(request, decision)
            return
        self._tries.forget(_key(request))
        await request.finish_events(decision.status)
        request.ack(decision.status, response, self._provenance)
        report_request(
            request.claimed,
            response,
            decision.status,
            worker=request.worker,
            queue_wait_s=request.queue_wait_s,
            e2e_s=request.queue_wait_s + time.monotonic() - request.claimed_at,
        )
        if decision.status == "succeeded":
            self._admission.learn(request.record, response)
        if request.claimed.crashes:
            self._load.widen_suspects()

    async def _fail(self, request: ClaimedRequest, failure: Failure, decision: Nack) -> None:
        if self._brake.spares(request, failure):
            await request.release()
        else:
            await self._nack(request, decision)

    async def _nack(self, request: ClaimedRequest, decision: Nack, delay_s: float = 0.0) -> None:
        attempt = request.claimed.attempt
        delay_ms = int(max(delay_s, self._backoff_s(attempt)) * 1000)
        code = await request.nack(decision.error, delay_ms)
        if code == "dead_lettered":
            self._tries.forget(_key(request))
        event = "request.dead_lettered" if code == "dead_lettered" else "request.retried"
        log.warning(event, id=request.id, attempt=attempt, delay_ms=delay_ms, **decision.error)

    async def _put_off(self, request: ClaimedRequest, error: EngineUnavailable) -> None:
        """Give back a request that the engine did not serve; it waits in the queue, not here."""
        now_s, is_refusal = time.monotonic(), error.is_refusal
        self._limit.note_failed(request, is_refusal=is_refusal, now_s=now_s)
        failed = self._tries.note(_key(request), is_refusal=is_refusal, now_s=now_s)
        delay_s = max(self._backoff_s(failed.number), error.retry_after_s)
        if failed.counts:
            await self._nack(request, verdict_on_unavailable(error), delay_s)
            return
        log.warning(
            "engine.unavailable",
            id=request.id,
            error=str(error),
            num_tries=failed.number,
            delay_s=round(delay_s, 3),
        )
        await request.release(1 + int(delay_s * 1000))  # not 0: it must not be the next claim

    def _backoff_s(self, attempt: int) -> float:
        return backoff_s(attempt, self._settings.backoff_base_s, self._settings.backoff_max_s)


def _key(request: ClaimedRequest) -> tuple[str, str]:
    return request.queue, request.id
