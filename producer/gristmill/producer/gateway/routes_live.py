"""Routes of live requests: OpenAI's own paths, whose calls wait for the answer.

The answer has the status and the body of the engine. A live request uses the lane `high`, whatever the highest lane of
its tenant is. `LiveLimit` bounds how many of them a tenant may have.
"""

import asyncio
from functools import partial
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Header, Request
from fastapi.responses import Response
from starlette.requests import ClientDisconnect
from ulid import ULID

from gristmill.producer.gateway.context import CallingTenant, CurrentGateway, Gateway
from gristmill.producer.gateway.creation import IdempotencyKey, name_of_key
from gristmill.producer.gateway.failover_retry import retry_redis
from gristmill.producer.gateway.http_errors import NO_RETRY, RETRY_AFTER_S, ApiError, ErrorAnswer
from gristmill.producer.gateway.live_stream import EventAnswer, LiveStream, Unstreamed
from gristmill.producer.gateway.queuing import incoming, submit
from gristmill.producer.tenants import Tenant
from gristmill.shared.errors import GristmillError
from gristmill.shared.event_streams import FACT, STREAMED, stream_fact
from gristmill.shared.names import owned_id
from gristmill.shared.one_line import shown
from gristmill.shared.operations import max_element_bytes
from gristmill.shared.request import CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES
from gristmill.shared.request import Request as QueuedRequest
from gristmill.shared.request_json import object_from_json
from gristmill.shared.results import Result
from gristmill.shared.tasks import end

router = APIRouter(tags=["live requests"])

LIVE = (CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES, "/v1/rerank", "/v1/score")
"""Endpoints with live requests."""

KEPT_STATE = ("store", "background", "previous_response_id", "conversation")
"""Fields of the Responses API that need a server which keeps responses."""

REQUEST_ID = "X-Gristmill-Request-Id"
"""Header of each answer with the id of the queue's request. `X-Request-Id` is the id of the call."""

STOP_MARGIN_S = 2.0
"""Seconds before the end of the drain at which waiting calls answer, so that the answers arrive."""

_STATUS = {"cancelled": 409, "expired": 504, "engine_unavailable": 502, "connection_broken": 502}
"""Code of the error of a request without an answer -> HTTP status; other codes are a 500."""


async def live(
    request: Request,
    gateway: CurrentGateway,
    tenant: CallingTenant,
    idempotency_key: IdempotencyKey = None,
    last_event_id: Annotated[
        str | None, Header(max_length=64, description="event after which a stream goes on")
    ] = None,
) -> Response:
    """Queue a request, wait for its answer and return it. Repeated calls with the same Idempotency-Key queue it once.

    A call whose client goes away cancels its request, unless the call has an Idempotency-Key.
    """
    key = name_of_key(tenant.name, idempotency_key)
    if last_event_id and key is None:
        message = (
            "Last-Event-ID goes on with the stream of an earlier call; send its Idempotency-Key"
        )
        raise ApiError(400, message, param="Last-Event-ID")
    queued = await _queue(request, gateway, tenant, key)
    if FACT in queued.facts:
        return await _stream(request, gateway, queued, key, last_event_id or "")
    return _answer(await _result(request, gateway, queued.id, key))


for path in LIVE:
    router.add_api_route(
        path,
        live,
        methods=["POST"],
        response_class=Response,
        responses={
            200: {
                "content": {"application/json": {}, "text/event-stream": {}}, "description": "The engine's answer",
            },
            **{status: {"model": ErrorAnswer} for status in (500, 502, 504)},
        },
        openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}},
    )  # fmt: skip


async def _stream(
    call: Request, gateway: Gateway, queued: QueuedRequest, key: str | None, last_event_id: str
) -> Response:
    """Return the answer to a call with `stream: true`, once its first event has come."""
    stream = LiveStream(
        gateway.models.of_id(queued.id), queued, key, last_event_id,
        limit_s=gateway.settings.gateway_live_timeout_s,
        leaving=_client_left(call), stopping=_stopped(gateway),
    )  # fmt: skip
    events = stream.events()
    try:
        first = await anext(events)
    except Unstreamed as plain:
        return _answer(plain.result)
    except ApiError as error:
        may_repeat = key is not None and error.code in ("timeout", "gateway_stopping")
        error.headers = {REQUEST_ID: queued.id, **_repeat_headers(may_repeat), **error.headers}
        raise
    return EventAnswer(first, events, {REQUEST_ID: queued.id})


async def _queue(call: Request, gateway: Gateway, tenant: Tenant, key: str | None) -> QueuedRequest:
    """Queue the request of a call.

    Raises:
        LimitReached: The tenant has `max_live` live requests, or would exceed another limit.
    """
    new_id = str(ULID())
    parse = partial(
        live_request,
        endpoint=call.scope["route"].path,
        tenant=tenant,
        name=key or new_id,
        call_id=call.state.call.request_id,
        max_request_bytes=gateway.settings.max_request_bytes,
    )
    async with incoming(call, gateway, tenant, key, parse=parse, new_id=new_id) as queued:
        queue = gateway.models.of_id(queued.id).queue
        await gateway.live_limit.add(tenant, queue, queued.id)
        try:
            await submit(gateway, queued, is_repeatable=key is not None)
        except GristmillError:
            await gateway.live_limit.drop_refused(tenant, queue, queued.id)
            raise
    return queued


def live_request(
    body: bytes, *, endpoint: str, tenant: Tenant, name: str, call_id: str, max_request_bytes: int
) -> QueuedRequest:
    """Return the request of a plain OpenAI body.

    Args:
        body: JSON of the body.
        endpoint: Endpoint of the request: the path of the call.
        tenant: The calling tenant.
        name: The Idempotency-Key or a new id, which becomes part of the request's id.
        call_id: The X-Request-Id of the call, which becomes the metadata.
        max_request_bytes: Largest body that the queue takes.

    Raises:
        InvalidRequest: The body breaks a rule.
        ApiError: 400 for a field that this gateway cannot serve.
    """
    fields = object_from_json(body, max_element_bytes(max_request_bytes))
    facts = _taken_facts(fields, endpoint)
    _check_fields(fields, endpoint)
    return QueuedRequest.from_body(
        fields,
        endpoint=endpoint,
        id=owned_id(tenant.name, name),
        tenant=tenant.name,
        priority="high",
        metadata={"request_id": call_id},
        facts=facts,
    )


def _taken_facts(fields: dict[str, Any], endpoint: str) -> dict[str, str]:
    """Take `stream: true` and `stream_options` out of a body; return the facts that say so to the worker.

    The body then asks for a whole answer, so that a worker that knows no streams gives one.
    """
    stream = fields.get("stream")
    if stream is None or stream is False:
        return {}
    if stream is not True or endpoint not in STREAMED:
        message = f"stream is {shown(stream)}; use true or false; only {', '.join(STREAMED)} stream"
        raise ApiError(400, message, param="stream")
    del fields["stream"]
    options = fields.pop("stream_options", None) or {}
    if not isinstance(options, dict):
        raise ApiError(400, f"stream_options is {shown(options)}; use an object", param="stream_options")  # fmt: skip
    return stream_fact(options)


def _check_fields(fields: dict[str, Any], endpoint: str) -> None:
    if endpoint != RESPONSES:
        return
    for name in KEPT_STATE:
        if fields.get(name):
            message = (
                f"{name!r} needs a server that keeps responses, and a gateway keeps none; leave it out, and send the"
                " whole conversation as input; a request that runs in the background is POST /v1/requests"
            )
            raise ApiError(400, message, param=name)


async def _result(call: Request, gateway: Gateway, request_id: str, key: str | None) -> Result:
    """Wait for the end of a request.

    Raises:
        ApiError: 504 after the time limit; 503 if the gateway stops first. The request goes on.
        ClientDisconnect: The client has gone, and its request is cancelled unless the call has a key.
    """
    waiting = asyncio.create_task(gateway.models.of_id(request_id).client.wait(request_id))
    leaving = asyncio.create_task(_client_left(call))
    stopping = asyncio.create_task(_stopped(gateway))
    tasks, timeout_s = (waiting, leaving, stopping), gateway.settings.gateway_live_timeout_s
    try:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            return waiting.result()
        if leaving.done():
            if key is None:
                queue = gateway.models.of_id(request_id).queue
                await retry_redis(queue.cancel, [request_id])
            raise ClientDisconnect
        if stopping.done():
            raise _stopped_first(request_id, key)
        reason = await gateway.models.of_id(request_id).lack_of_workers()
        raise _too_late(request_id, key, timeout_s, reason)
    finally:
        await end(*tasks)


async def _client_left(call: Request) -> None:
    """Return when the client has closed the connection; the call's body was read before."""
    while (await call.receive())["type"] != "http.disconnect":
        pass


async def _stopped(gateway: Gateway) -> None:
    """Return shortly before a stopping gateway cuts off its calls."""
    await gateway.stopping.wait()
    await asyncio.sleep(max(0.0, gateway.settings.drain_timeout_s - STOP_MARGIN_S))


def _too_late(request_id: str, key: str | None, timeout_s: float, reason: str) -> ApiError:
    why = f"did not come within {timeout_s:g} s (GRISTMILL_GATEWAY_LIVE_TIMEOUT_S){reason}"
    return _unanswered(request_id, key, 504, "timeout", why)


def _stopped_first(request_id: str, key: str | None) -> ApiError:
    why = "did not come before this gateway had to stop"
    return _unanswered(request_id, key, 503, "gateway_stopping", why)


def _unanswered(request_id: str, key: str | None, status: int, code: str, why: str) -> ApiError:
    """Return the error for a call that ends before its request. Only a call with a key may be repeated."""
    repeat = (
        "or repeat the call with its Idempotency-Key"
        if key
        else "an Idempotency-Key would allow a repeat"
    )
    return ApiError(
        status,
        f"the answer of request {request_id} {why}; the request goes on: GET /v1/requests/{request_id}, {repeat}",
        code=code,
        headers={REQUEST_ID: request_id, **_repeat_headers(key is not None)},
    )


def _repeat_headers(may_repeat: bool) -> dict[str, str]:
    return {"Retry-After": str(RETRY_AFTER_S)} if may_repeat else NO_RETRY


def _answer(result: Result) -> Response:
    """Return what `vllm serve` would answer. A repeat of a failed request would fail again: the queue has retried it.

    Raises:
        ApiError: The request ended without an answer of the engine.
    """
    headers = {REQUEST_ID: result.id}
    if result.status_code is None:
        raise _failed(result, headers | NO_RETRY)
    if result.status_code >= 400:
        headers |= NO_RETRY
    return Response(orjson.dumps(result.body), result.status_code, headers, "application/json")


def _failed(result: Result, headers: dict[str, str]) -> ApiError:
    error = result.error or {}
    code, message = str(error.get("code", "")), str(error.get("message", ""))
    message = f"request {result.id}: {message}"
    return ApiError(_STATUS.get(code, 500), message, code=code or None, headers=headers)
