"""Routes of `/v1/files`: OpenAI's Files API.

The API: https://platform.openai.com/docs/api-reference/files
"""

import asyncio
from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from gristmill.producer.batches.objects import FileObject, Purpose
from gristmill.producer.batches.upload import Upload
from gristmill.producer.gateway.context import CallingTenant, CurrentGateway, caller_of
from gristmill.producer.gateway.http_errors import too_large
from gristmill.producer.gateway.redis_retry import retry_redis
from gristmill.producer.gateway.request_body import declared_bytes, unstalled
from gristmill.producer.gateway.upload_form import FORM_SCHEMA, UploadForm

router = APIRouter(tags=["files"])

CHUNK_BYTES = 2**20
"""Bytes of one write; a thread for each packet would cost more than the write itself."""

FORM_BYTES = 2**16
"""Most bytes of a form without its file."""


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
async def upload(request: Request, gateway: CurrentGateway, tenant: CallingTenant) -> FileObject:
    """Upload a JSONL file of requests. Its fields may come before the file or after it."""
    max_bytes = gateway.settings.max_file_bytes + FORM_BYTES
    declared = declared_bytes(request)
    if declared > max_bytes:
        raise too_large("the file", gateway.settings.max_file_bytes, "GRISTMILL_MAX_FILE_BYTES")
    with gateway.body_pools.share(caller_of(request, tenant)) as share:
        buffer_bytes = 2 * CHUNK_BYTES + gateway.batches.files.storage.buffer_bytes
        share.resize(min(declared or buffer_bytes, buffer_bytes))
        async with Upload(gateway.batches.files, tenant.name) as upload:
            await upload.reserve(max(0, declared - FORM_BYTES))
            form = UploadForm(request.headers.get("content-type", ""), upload.write)
            await _receive(form, request, max_bytes, upload)
            file = await upload.finish(*form.finished())
    request.state.call.facts["file"] = file.id
    return file


async def _receive(form: UploadForm, request: Request, max_bytes: int, upload: Upload) -> None:
    num_bytes, unwritten = 0, bytearray()
    async for chunk in unstalled(request.stream()):
        num_bytes += len(chunk)
        if num_bytes > max_bytes:
            raise too_large("the body", max_bytes, "GRISTMILL_MAX_FILE_BYTES")
        unwritten += chunk
        if len(unwritten) >= CHUNK_BYTES:
            if not declared_bytes(request):
                await upload.reserve(num_bytes)
            await asyncio.to_thread(form.receive, bytes(unwritten))
            unwritten.clear()
    await asyncio.to_thread(form.receive, bytes(unwritten))


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
