"""Routes of `/v1/batches`: OpenAI's Batch API, and also retry and results.

The API: https://platform.openai.com/docs/api-reference/batch
"""

from collections.abc import AsyncIterator
from typing import Annotated, Literal

import orjson
from fastapi import APIRouter, Depends, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema
from starlette.requests import ClientDisconnect

from gristmill.producer.batches.batch_service import new_batch_id
from gristmill.producer.batches.batch_spec import BatchSpec
from gristmill.producer.batches.creations import CreationKey
from gristmill.producer.batches.objects import BatchObject, Mode, Order, UnknownFields
from gristmill.producer.gateway.context import CallingTenant, CurrentGateway, caller_of
from gristmill.producer.gateway.creation import IdempotencyKey, creating
from gristmill.producer.gateway.failover_retry import retry_redis
from gristmill.producer.gateway.request_body import read_body
from gristmill.producer.gateway.upload_form import MAX_EXPIRY_S, MIN_EXPIRY_S
from gristmill.producer.highest_lane import lower_of
from gristmill.shared.request import Priority

router = APIRouter(tags=["batches"])

MAX_BODY_BYTES = 2**20
"""Largest body of a new batch."""

MAY_EXIST = "a new batch may exist, GET /v1/batches shows it"

MetadataName = Annotated[str, Field(min_length=1, max_length=64)]
MetadataValue = Annotated[str, Field(max_length=512)]


class ExpiresAfter(BaseModel):
    """The time after which a batch's output files are deleted."""

    model_config = ConfigDict(extra="forbid")

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=MIN_EXPIRY_S, le=MAX_EXPIRY_S)]


class NewBatch(BaseModel):
    """The fields of a new batch. OpenAI's API does not have the last four."""

    model_config = ConfigDict(extra="forbid")

    input_file_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    endpoint: str
    completion_window: Annotated[
        str, Field(description="whole number and unit: s, m, h or d", examples=["24h", "30m", "7d"])
    ] = "24h"
    metadata: Annotated[dict[MetadataName, MetadataValue] | None, Field(max_length=16)] = None
    output_expires_after: (
        Annotated[ExpiresAfter, WithJsonSchema(ExpiresAfter.model_json_schema())] | None
    ) = None
    mode: Mode = "strict"
    order: Order = "completion"
    unknown_fields: Annotated[
        UnknownFields,
        Field(description="body fields that the engine ignores: warnings, or a bad line"),
    ] = "report"
    priority: Annotated[
        Priority | None,
        Field(description="lane of lines that set none; normal unless the tenant's highest is low"),
    ] = None


class BatchPage(BaseModel):
    """A page of batches."""

    object: Literal["list"] = "list"
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


async def new_batch(request: Request, gateway: CurrentGateway, tenant: CallingTenant) -> NewBatch:
    """Return the body of a call, which only a known caller may send.

    FastAPI would read the body before it looks at the key.

    Raises:
        RequestValidationError: The body breaks a rule.
    """
    with gateway.body_pools.share(caller_of(request, tenant)) as share:
        body = await read_body(request, share, MAX_BODY_BYTES)
    try:
        return NewBatch.model_validate_json(body)
    except ValidationError as error:
        raise RequestValidationError(
            [each | {"loc": ("body", *each["loc"])} for each in error.errors()]
        ) from None


@router.post(
    "/v1/batches",
    response_model=BatchObject,
    openapi_extra={
        "requestBody": {"required": True, "content": {"application/json": {"schema": NewBatch.model_json_schema()}}}
    },
)  # fmt: skip
async def create(
    new: Annotated[NewBatch, Depends(new_batch)],
    request: Request,
    gateway: CurrentGateway,
    tenant: CallingTenant,
    idempotency_key: IdempotencyKey = None,
) -> object:
    """Run every line of a file as one request. Repeated calls with the same Idempotency-Key create one batch."""
    if await request.is_disconnected():  # its client may have given up and called again
        raise ClientDisconnect
    expires = new.output_expires_after
    spec = BatchSpec(
        **new.model_dump(exclude={"output_expires_after", "priority"}),
        priority=new.priority or lower_of("normal", tenant.max_priority),
        max_priority=tenant.max_priority,
        output_expires_after_s=expires.seconds if expires else None,
    )
    with creating(MAY_EXIST, is_repeatable=idempotency_key is not None):
        made = await retry_redis(
            gateway.batches.create,
            tenant.name,
            spec,
            max_open=tenant.max_batches,
            batch_id=new_batch_id(),
            key=_creation_key(idempotency_key, "create", new.model_dump()),
        )
    request.state.call.facts["batch"] = made.id
    return made


def _creation_key(key: str | None, *asked: object) -> CreationKey | None:
    return CreationKey.of(key, orjson.dumps(asked)) if key is not None else None


@router.get("/v1/batches", response_model=BatchPage)
async def batches(
    gateway: CurrentGateway,
    tenant: CallingTenant,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> object:
    """List batches, newest first."""
    return await retry_redis(gateway.batches.batches, tenant.name, after=after, limit=limit)


@router.get("/v1/batches/{batch_id}", response_model=BatchObject)
async def batch(batch_id: str, gateway: CurrentGateway, tenant: CallingTenant) -> object:
    """Return a batch."""
    return await retry_redis(gateway.batches.batch, tenant.name, batch_id)


@router.post("/v1/batches/{batch_id}/cancel", response_model=BatchObject)
async def cancel(batch_id: str, gateway: CurrentGateway, tenant: CallingTenant) -> object:
    """Cancel a batch. Rows that are written stay."""
    return await gateway.batches.cancel(tenant.name, batch_id)


@router.post("/v1/batches/{batch_id}/retry", response_model=BatchObject)
async def retry(
    batch_id: str,
    request: Request,
    gateway: CurrentGateway,
    tenant: CallingTenant,
    *,
    is_all: Annotated[
        bool, Query(alias="all", description="run also the lines that can never succeed")
    ] = False,
    idempotency_key: IdempotencyKey = None,
) -> object:
    """Run the failed lines of a batch that has ended, as a new batch."""
    with creating(MAY_EXIST, is_repeatable=idempotency_key is not None):
        made = await gateway.batches.retry_failed(
            tenant.name,
            batch_id,
            max_open=tenant.max_batches,
            max_priority=tenant.max_priority,
            is_all=is_all,
            key=_creation_key(idempotency_key, "retry", batch_id, is_all),
        )
    request.state.call.facts["batch"] = made.id
    return made


@router.get(
    "/v1/batches/{batch_id}/results",
    response_class=StreamingResponse,
    responses={200: {"content": {"application/x-ndjson": {}}, "description": "Rows as JSON lines"}},
)
async def results(
    batch_id: str, gateway: CurrentGateway, tenant: CallingTenant, follow: bool = False
) -> StreamingResponse:
    """Stream the rows written so far, as in the output file.

    With `follow`, stream until the batch has ended.

    A gateway that stops in the middle breaks the connection, so a cut stream never looks complete.
    """
    rows: AsyncIterator[bytes] = await gateway.batches.results(tenant.name, batch_id, follow=follow)
    return StreamingResponse(rows, media_type="application/x-ndjson")
