"""Routes of `/v1/files`: OpenAI's Files API.

The API: https://platform.openai.com/docs/api-reference/files
"""

from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from gristmill.producer.batches.objects import FileObject, Purpose
from gristmill.producer.gateway.context import CallingTenant, CurrentGateway, caller_of
from gristmill.producer.gateway.creation import IdempotencyKey
from gristmill.producer.gateway.failover_retry import retry_redis
from gristmill.producer.gateway.file_upload import CHUNK_BYTES, FileUpload
from gristmill.producer.gateway.request_body import declared_bytes
from gristmill.producer.gateway.upload_form import FORM_SCHEMA

router = APIRouter(tags=["files"])


class FilePage(BaseModel):
    """A page of files."""

    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedFile(BaseModel):
    """The answer to the deletion of a file."""

    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


@router.post(
    "/v1/files", response_model=FileObject, openapi_extra={"requestBody": dict(FORM_SCHEMA)}
)
async def create(
    request: Request,
    gateway: CurrentGateway,
    tenant: CallingTenant,
    idempotency_key: IdempotencyKey = None,
) -> FileObject:
    """Upload a JSONL file of requests. Its fields may come before the file or after it.

    Repeated calls with the same Idempotency-Key store one file.
    """
    upload = FileUpload(gateway.batches, tenant.name, request, idempotency_key)
    upload.check_length()
    with gateway.body_pools.share(caller_of(request, tenant)) as share:
        buffer_bytes = 2 * CHUNK_BYTES + gateway.batches.files.storage.buffer_bytes
        share.resize(min(declared_bytes(request) or buffer_bytes, buffer_bytes))
        file = await upload.run()
    request.state.call.facts["file"] = file.id
    return file


@router.get("/v1/files", response_model=FilePage)
async def files(
    gateway: CurrentGateway,
    tenant: CallingTenant,
    *,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    order: Literal["asc", "desc"] = "desc",
    purpose: Purpose | None = None,
) -> object:
    """List files."""
    page = gateway.batches.files.page
    return await retry_redis(
        page, tenant.name, after=after, limit=limit, order=order, purpose=purpose
    )


@router.get("/v1/files/{file_id}", response_model=FileObject)
async def file(file_id: str, gateway: CurrentGateway, tenant: CallingTenant) -> object:
    """Return the description of a file."""
    return await retry_redis(gateway.batches.files.get, tenant.name, file_id)


@router.get(
    "/v1/files/{file_id}/content",
    response_class=StreamingResponse,
    responses={
        200: {"content": {"application/octet-stream": {}}, "description": "The bytes of the file"}
    },
)
async def content(
    file_id: str, gateway: CurrentGateway, tenant: CallingTenant
) -> StreamingResponse:
    """Download a file."""
    found = await retry_redis(gateway.batches.files.get, tenant.name, file_id)
    return StreamingResponse(
        gateway.batches.files.content(found),
        media_type="application/octet-stream",
        headers={
            "Content-Length": str(found.bytes),
            "Content-Disposition": f"attachment; filename*=UTF-8''{quote(found.filename, safe='')}",
        },
    )


@router.delete("/v1/files/{file_id}", response_model=DeletedFile)
async def delete(file_id: str, gateway: CurrentGateway, tenant: CallingTenant) -> DeletedFile:
    """Delete a file, unless a batch still reads it."""
    await gateway.batches.files.delete(tenant.name, file_id)
    return DeletedFile(id=file_id)
