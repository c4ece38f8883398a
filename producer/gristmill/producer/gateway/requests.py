"""The routes of `/v1/requests`: one request at a time, to be waited for or asked after.

A request's id is `<tenant>.<rest>`, the rest being the caller's Idempotency-Key or a fresh ULID: whoever asks
for an id that does not begin with his name gets a 404, without a look at the queue.
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import BaseModel
from ulid import ULID

from gristmill.producer.gateway import metrics
from gristmill.producer.gateway.callers import Caller
from gristmill.producer.gateway.errors import ApiError, too_large
from gristmill.producer.gateway.patience import PATIENCE_S, patiently
from gristmill.producer.gateway.service import Gateway, GatewayOf
from gristmill.producer.tenants import Tenant
from gristmill.shared.errors import InvalidRequest, NotFound
from gristmill.shared.intake import max_element_bytes, request_from_json
from gristmill.shared.media import names_media
from gristmill.shared.records import Request as QueuedRequest
from gristmill.shared.results import Result
from gristmill.shared.tasks import end

router = APIRouter(tags=["requests"])

RequestStatus = Literal[
    "queued", "delayed", "running", "succeeded", "failed", "cancelled", "expired"
]

MAX_BODY_S = 60.0
"""Longest way of a body: one that stalls keeps its share of what all bodies may take."""

_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?([0-9]{1,9})\"?(?=$|[,;\s])", re.I)


class EngineAnswer(BaseModel):
    """What `vllm serve` would have answered."""

    status_code: int
    body: Any


class RequestError(BaseModel):
    """Why there is no answer."""

    code: str
    message: str


class RequestObject(BaseModel):
    """One request, as callers see it.

    Attributes:
        response: The engine's answer, once there is one; errors of the request itself included.
        error: Why it ended without one: cancelled, expired, or what failed.
        metadata: What came with it, and `request_id`: the X-Request-Id of the call.
    """

    id: str
    object: Literal["request"] = "request"
    status: RequestStatus
    created_at: float | None = None
    finished_at: float | None = None
    response: EngineAnswer | None = None
    error: RequestError | None = None
    metadata: dict[str, Any] | None = None


_BODY = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "description": "An OpenAI body, or an envelope around one: body, endpoint, priority, deadline_s, ...",
                "properties": {
                    "endpoint": {"type": "string"},
                    "body": {"type": "object"},
                    "priority": {"type": "string", "enum": ["high", "normal", "low"]},
                    "messages": {"type": "array", "items": {"type": "object"}},
                    "prompt": {"type": "string"},
                    "max_tokens": {"type": "integer", "minimum": 1},
                },
            },
            "examples": {
                "plain": {"value": {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 9}},
                "envelope": {
                    "value": {"endpoint": "/v1/completions", "body": {"prompt": "Hello"}, "priority": "high"}
                },
            },
        }
    },
}  # fmt: skip


@router.post(
    "/v1/requests",
    response_model=RequestObject,
    status_code=202,
    responses={200: {"model": RequestObject, "description": "Its result, within the wait asked for"}},
    openapi_extra={"requestBody": _BODY},
)  # fmt: skip
async def submit(
    request: Request,
    response: Response,
    *,
    gateway: GatewayOf,
    tenant: Caller,
    idempotency_key: Annotated[str | None, Header(max_length=128)] = None,
    prefer: Annotated[str | None, Header(description="wait=SECONDS")] = None,
) -> RequestObject:
    """Queue a request; under an Idempotency-Key as often as you like, it runs once."""
    raw = await _body(request, gateway)
    call = request.state.call
    queued = _queued_request(raw, tenant, idempotency_key, call.request_id, gateway)
    call.facts["id"] = queued.id
    if names_media(queued):
        await gateway.media.check(queued)
    await gateway.limits.check_load(tenant, queued.num_bytes)
    await _submit(gateway, queued)
    response.headers["Location"] = f"/v1/requests/{queued.id}"
    wait_s = _preferred_wait_s(prefer)
    if wait_s is None and idempotency_key is None:
        return RequestObject(id=queued.id, status="delayed" if queued.delay_s else "queued")
    found = await _seen(gateway, queued.id, wait_s or 0)
    if wait_s is not None:
        response.headers["Preference-Applied"] = f"wait={wait_s}"
    if found.finished_at is not None:
        response.status_code = 200
    return found


@router.get("/v1/requests/{request_id:path}", response_model=RequestObject)
async def get(
    request_id: str,
    gateway: GatewayOf,
    tenant: Caller,
    wait: Annotated[float, Query(ge=0, description="seconds to wait for its end, up to the gateway's cap")] = 0,
) -> RequestObject:  # fmt: skip
    """Say where a request is, and what came of it."""
    _check_owner(tenant, request_id)
    return await _seen(gateway, request_id, wait)


@router.delete("/v1/requests/{request_id:path}", response_model=RequestObject)
async def cancel(request_id: str, gateway: GatewayOf, tenant: Caller) -> RequestObject:
    """Cancel a request, waiting or running; one that has ended stays as it is."""
    _check_owner(tenant, request_id)
    await patiently(partial(gateway.queue.cancel, [request_id]))
    return await _seen(gateway, request_id, 0)


async def _body(request: Request, gateway: Gateway) -> bytes:
    """Read a body; what all calls hold at a time is bounded, and so is for how long."""
    try:
        with gateway.bodies.share() as take:
            async with asyncio.timeout(MAX_BODY_S):
                return await _read(request, take, gateway.settings.max_request_bytes)
    except TimeoutError:
        message = f"the body did not come within {MAX_BODY_S:g} s; send it faster, or a smaller one"
        raise ApiError(408, message, code="body_timeout") from None


async def _read(request: Request, take: Callable[[int], None], max_request_bytes: int) -> bytes:
    max_bytes = max_element_bytes(max_request_bytes)
    body = bytearray()
    async for chunk in request.stream():
        take(len(chunk))
        body += chunk
        if len(body) > max_bytes:
            what = "GRISTMILL_MAX_REQUEST_BYTES, with what JSON adds"
            raise too_large("the body", max_bytes, what)
    return bytes(body)


def _queued_request(
    raw: bytes, tenant: Tenant, key: str | None, call_id: str, gateway: Gateway
) -> QueuedRequest:
    """Return the request of a body, under the caller's name whatever it says of itself."""
    default_id = key or str(ULID())
    queued = request_from_json(
        raw,
        max_request_bytes=gateway.settings.max_request_bytes,
        default_id=default_id,
    )
    if key is not None and queued.id != key:
        raise InvalidRequest("the body has an id and the call an Idempotency-Key; send one of them")
    if queued.batch:
        raise InvalidRequest("'batch' is not taken here; POST /v1/batches makes batches")
    return replace(
        queued,
        id=f"{tenant.name}.{queued.id}",
        tenant=tenant.name,
        metadata={**(queued.metadata or {}), "request_id": call_id},
    )


async def _submit(gateway: Gateway, queued: QueuedRequest) -> None:
    """Submit, giving up after a while: `Client` would wait for Redis as long as it takes."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            await gateway.client.submit(queued, wait=False)
    except TimeoutError:
        raise ConnectionError(f"no answer to a submit within {PATIENCE_S:g} s") from None
    metrics.submitted.inc()


async def _seen(gateway: Gateway, request_id: str, wait_s: float) -> RequestObject:
    """Return a request, its result as soon as it is there within `wait_s`.

    Raises:
        NotFound: There is none, or its result's TTL has ended.
    """
    result = await _result(gateway, request_id)
    if result is None and wait_s > 0:
        result = await _awaited(
            gateway, request_id, min(wait_s, gateway.settings.gateway_max_wait_s)
        )
    if result is not None:
        return _finished(result)
    ((state, _),) = await patiently(partial(gateway.queue.status, [request_id]))
    if state == "done":  # a moment ago
        state = "running"
    if state == "unknown":
        raise NotFound(f"there is no request {request_id[:200]!r}, or its result has expired")
    return RequestObject(id=request_id, status=state)


async def _result(gateway: Gateway, request_id: str) -> Result | None:
    return (await patiently(partial(gateway.queue.results, [request_id])))[0]


async def _awaited(gateway: Gateway, request_id: str, wait_s: float) -> Result | None:
    """Wait for a result, until `wait_s` have passed or the gateway stops."""
    waiting = asyncio.create_task(gateway.client.wait(request_id))
    stopping = asyncio.create_task(gateway.stopping.wait())
    try:
        await asyncio.wait((waiting, stopping), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        return waiting.result() if waiting.done() else None
    finally:
        await end(waiting, stopping)


def _finished(result: Result) -> RequestObject:
    answer = None
    if result.status_code is not None:
        answer = EngineAnswer(status_code=result.status_code, body=result.body)
    return RequestObject(
        id=result.id,
        status=result.status,
        created_at=result.enqueued_ms / 1000,
        finished_at=result.finished_ms / 1000,
        response=answer,
        error=RequestError(**_words(result.error)) if result.error else None,
        metadata=result.metadata,
    )


def _words(error: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(error.get(name, "")) for name in ("code", "message")}


def _check_owner(tenant: Tenant, request_id: str) -> None:
    if not request_id.startswith(f"{tenant.name}."):
        raise NotFound(f"there is no request {request_id[:200]!r}, or its result has expired")


def _preferred_wait_s(prefer: str | None) -> int | None:
    """Read `Prefer: wait=10` (RFC 7240); what else stands there is ignored, as the RFC wants it."""
    found = _WAIT.search(prefer or "")
    return int(found[1]) if found else None
