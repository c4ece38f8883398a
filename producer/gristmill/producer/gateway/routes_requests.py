"""Routes of `/v1/requests`: submit one request, return its status and result, cancel it.

A request's id is `<tenant>.<rest>`. The rest is the caller's Idempotency-Key, the id in the body, or a new ULID. Then
follows `@<queue>`, if the queue is not the gateway's first. A caller that asks for the id of another tenant gets a 404,
without a look at the queue.
"""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import BaseModel
from ulid import ULID

from gristmill.producer.gateway import queuing
from gristmill.producer.gateway.context import CallingTenant, CurrentGateway, Gateway
from gristmill.producer.gateway.creation import IdempotencyKey, name_of_key
from gristmill.producer.gateway.failover_retry import retry_redis
from gristmill.producer.gateway.queuing import incoming
from gristmill.producer.highest_lane import check_priority, lower_of
from gristmill.producer.tenants import Tenant
from gristmill.shared.errors import InvalidRequest, NotFound
from gristmill.shared.known_fields import unknown_in_words
from gristmill.shared.names import owned_id
from gristmill.shared.request import Request as QueuedRequest
from gristmill.shared.request_json import request_from_json
from gristmill.shared.results import Result
from gristmill.shared.tasks import end

router = APIRouter(tags=["requests"])

RequestStatus = Literal[
    "queued", "delayed", "running", "succeeded", "failed", "cancelled", "expired"
]

_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?([0-9]{1,9})\"?(?=$|[,;\s])", re.I)


BODY_SCHEMA: Mapping[str, object] = {
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
                    "value": {"endpoint": "/v1/completions", "body": {"prompt": "Hello"}, "priority": "low"}
                },
            },
        }
    },
}  # fmt: skip
"""The body's schema for the OpenAPI page. FastAPI does not know it, because `read_body` reads the body."""


class EngineAnswer(BaseModel):
    """The answer that `vllm serve` would have given."""

    status_code: int
    body: Any


class RequestError(BaseModel):
    """The reason why a request has no answer."""

    code: str
    message: str


class RequestObject(BaseModel):
    """One request, as callers see it.

    Attributes:
        response: The engine's answer, even if that is an error; None if there is no answer yet.
        error: The reason why the request ended without an answer: cancelled, expired or failed.
        warnings: What the engine ignores in the body; only the answer to the submit has it.
        metadata: The request's metadata, and `request_id`: the X-Request-Id of the call.
    """

    id: str
    object: Literal["request"] = "request"
    status: RequestStatus
    created_at: float | None = None
    finished_at: float | None = None
    response: EngineAnswer | None = None
    error: RequestError | None = None
    warnings: list[str] | None = None
    metadata: dict[str, Any] | None = None


@router.post(
    "/v1/requests",
    response_model=RequestObject,
    status_code=202,
    responses={200: {"model": RequestObject, "description": "The result, if it came within the wait"}},
    openapi_extra={"requestBody": dict(BODY_SCHEMA)},
)  # fmt: skip
async def submit(
    request: Request,
    response: Response,
    *,
    gateway: CurrentGateway,
    tenant: CallingTenant,
    idempotency_key: IdempotencyKey = None,
    prefer: Annotated[str | None, Header(description="wait=SECONDS")] = None,
) -> RequestObject:
    """Queue a request. Repeated calls with the same Idempotency-Key queue it once."""
    key = name_of_key(tenant.name, idempotency_key)
    queued = await _queue(request, gateway, tenant, key)
    response.headers["Location"] = f"/v1/requests/{queued.id}"
    wait_s = _preferred_wait_s(prefer)
    if wait_s is None and idempotency_key is None:
        return queued
    found = await _find(gateway, queued.id, wait_s or 0)
    if wait_s is not None:
        response.headers["Preference-Applied"] = f"wait={wait_s}"
    if found.finished_at is not None:
        response.status_code = 200
    return found.model_copy(update={"warnings": queued.warnings})


@router.get("/v1/requests/{request_id:path}", response_model=RequestObject)
async def get(
    request_id: str,
    gateway: CurrentGateway,
    tenant: CallingTenant,
    wait: Annotated[float, Query(ge=0, description="seconds to wait for its end, up to the gateway's cap")] = 0,
) -> RequestObject:  # fmt: skip
    """Return the status of a request, and its result once it has ended."""
    _check_owner(tenant, request_id)
    return await _find(gateway, request_id, wait)


@router.delete("/v1/requests/{request_id:path}", response_model=RequestObject)
async def cancel(request_id: str, gateway: CurrentGateway, tenant: CallingTenant) -> RequestObject:
    """Cancel a request that waits or runs. A request that has ended stays as it is."""
    _check_owner(tenant, request_id)
    await retry_redis(gateway.models.of_id(request_id).queue.cancel, [request_id])
    return await _find(gateway, request_id, 0)


async def _queue(call: Request, gateway: Gateway, tenant: Tenant, key: str | None) -> RequestObject:
    """Queue the request of a call."""
    new_id = str(ULID())
    parse = partial(
        queued_request,
        tenant=tenant,
        key=key,
        call_id=call.state.call.request_id,
        new_id=new_id,
        max_request_bytes=gateway.settings.max_request_bytes,
    )
    async with incoming(call, gateway, tenant, key, parse=parse, new_id=new_id) as queued:
        is_repeatable = key is not None or new_id not in queued.id
        await queuing.submit(gateway, queued, is_repeatable=is_repeatable)
    return RequestObject(
        id=queued.id,
        status="delayed" if queued.delay_s else "queued",
        warnings=_warnings(queued),
    )


def queued_request(
    body: bytes,
    *,
    tenant: Tenant,
    key: str | None,
    call_id: str,
    new_id: str,
    max_request_bytes: int,
) -> QueuedRequest:
    """Return the request of a body. Its tenant is the caller, even if the body names another.

    Args:
        body: A request in JSON.
        tenant: The calling tenant.
        key: The Idempotency-Key, which becomes part of the request's id.
        call_id: The X-Request-Id of the call, which becomes part of the metadata.
        new_id: Id of a request without an id and a key.
        max_request_bytes: Largest request that the queue takes.

    Raises:
        InvalidRequest: The body breaks a rule.
    """
    default_id = key or new_id
    defaults = {"priority": lower_of("normal", tenant.max_priority)}
    request = request_from_json(
        body, max_request_bytes=max_request_bytes, default_id=default_id, defaults=defaults
    )
    check_priority(request.priority, tenant.max_priority, tenant.name)
    if key is not None and request.id != key:
        raise InvalidRequest("the body has an id and the call an Idempotency-Key; send one of them")
    if request.batch:
        raise InvalidRequest("'batch' is not accepted here; POST /v1/batches makes batches")
    return replace(
        request,
        id=owned_id(tenant.name, request.id),
        tenant=tenant.name,
        metadata={**(request.metadata or {}), "request_id": call_id},
    )


def _warnings(queued: QueuedRequest) -> list[str] | None:
    names = queued.unknown_fields
    return [unknown_in_words(names, queued.endpoint)] if names else None


async def _find(gateway: Gateway, request_id: str, wait_s: float) -> RequestObject:
    """Return a request, after waiting up to `wait_s` for its result.

    Raises:
        NotFound: The queue has no such request, or its result has expired.
    """
    result = await _result_now(gateway, request_id)
    if result is None and wait_s > 0:
        result = await _result_within(
            gateway, request_id, min(wait_s, gateway.settings.gateway_max_wait_s)
        )
    if result is not None:
        return _finished(result)
    queue = gateway.models.of_id(request_id).queue
    ((state, _),) = await retry_redis(queue.status, [request_id])
    if state == "done":  # it ended after `_result_now`; the next call finds its result
        state = "running"
    if state == "unknown":
        raise NotFound(f"there is no request {request_id[:200]!r}, or its result has expired")
    return RequestObject(id=request_id, status=state)


async def _result_now(gateway: Gateway, request_id: str) -> Result | None:
    queue = gateway.models.of_id(request_id).queue
    return (await retry_redis(queue.results, [request_id]))[0]


async def _result_within(gateway: Gateway, request_id: str, wait_s: float) -> Result | None:
    """Wait for a result, until `wait_s` have passed or the gateway stops."""
    waiting = asyncio.create_task(gateway.models.of_id(request_id).client.wait(request_id))
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
        error=_request_error(result.error) if result.error else None,
        metadata=result.metadata,
    )


def _request_error(error: Mapping[str, Any]) -> RequestError:
    return RequestError(code=str(error.get("code", "")), message=str(error.get("message", "")))


def _check_owner(tenant: Tenant, request_id: str) -> None:
    if not request_id.startswith(owned_id(tenant.name, "")):
        raise NotFound(f"there is no request {request_id[:200]!r}, or its result has expired")


def _preferred_wait_s(prefer: str | None) -> int | None:
    """Return the seconds of `Prefer: wait=10`; other preferences are ignored, as RFC 7240 says."""
    found = _WAIT.search(prefer or "")
    return int(found[1]) if found else None
