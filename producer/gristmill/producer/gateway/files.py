"""The routes of `/v1/files`: OpenAI's Files API (https://platform.openai.com/docs/api-reference/files)."""

import asyncio
from functools import partial
from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from gristmill.producer.batches.objects import FileObject, Purpose
from gristmill.producer.gateway.callers import Caller
from gristmill.producer.gateway.errors import too_large
from gristmill.producer.gateway.form import SCHEMA, UploadForm
from gristmill.producer.gateway.patience import patiently
from gristmill.producer.gateway.service import GatewayOf

router = APIRouter(tags=["files"])

CHUNK_BYTES = 2**20
"""What is written at a time; a thread a packet would cost more than the write."""

FORM_BYTES = 2**16
"""What a form may have beside its file."""


class FilePage(BaseModel):
    """A page of files."""

    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedFile(BaseModel):
    """What the end of a file looks like."""

    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


@router.post("/v1/files", response_model=FileObject, openapi_extra={"requestBody": dict(SCHEMA)})
async def upload(request: Request, gateway: GatewayOf, tenant: Caller) -> FileObject:
    """Upload a JSONL file of requests. Its fields may come before the file or after it."""
    max_bytes = gateway.settings.max_file_bytes + FORM_BYTES
    if int(request.headers.get("content-length", 0)) > max_bytes:
        raise too_large("the file", gateway.settings.max_file_bytes, "GRISTMILL_MAX_FILE_BYTES")
    async with gateway.batches.files.upload(tenant.name) as upload:
        form = UploadForm(request.headers.get("content-type", ""), upload.write)
        await _feed(form, request, max_bytes)
        file = await upload.finish(*form.finished())
    request.state.call.facts["file"] = file.id
    return file


async def _feed(form: UploadForm, request: Request, max_bytes: int) -> None:
    num_bytes, gathered = 0, bytearray()
    async for chunk in request.stream():
        num_bytes += len(chunk)
        if num_bytes > max_bytes:
            raise too_large("the body", max_bytes, "GRISTMILL_MAX_FILE_BYTES")
        gathered += chunk
        if len(gathered) >= CHUNK_BYTES:
            await asyncio.to_thread(form.feed, bytes(gathered))
            gathered.clear()
    await asyncio.to_thread(form.feed, bytes(gathered))


@router.get("/v1/files", response_model=FilePage)
async def files(
    gateway: GatewayOf,
    tenant: Caller,
    *,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    order: Literal["asc", "desc"] = "desc",
    purpose: Purpose | None = None,
) -> object:
    """List files."""
    found = partial(gateway.batches.files.page, tenant.name, after=after, limit=limit, order=order)
    return await patiently(partial(found, purpose=purpose))


@router.get("/v1/files/{file_id}", response_model=FileObject)
async def file(file_id: str, gateway: GatewayOf, tenant: Caller) -> object:
    """Return a file's facts."""
    return await patiently(partial(gateway.batches.files.get, tenant.name, file_id))


@router.get(
    "/v1/files/{file_id}/content",
    response_class=StreamingResponse,
    responses={200: {"content": {"application/octet-stream": {}}, "description": "Its bytes"}},
)
async def content(file_id: str, gateway: GatewayOf, tenant: Caller) -> StreamingResponse:
    """Download a file."""
    found = await patiently(partial(gateway.batches.files.get, tenant.name, file_id))
    return StreamingResponse(
        gateway.batches.files.content(found),
        media_type="application/octet-stream",
        headers={
            "Content-Length": str(found.bytes),
            "Content-Disposition": f"attachment; filename*=UTF-8''{quote(found.filename, safe='')}",
        },
    )


@router.delete("/v1/files/{file_id}", response_model=DeletedFile)
async def delete(file_id: str, gateway: GatewayOf, tenant: Caller) -> DeletedFile:
    """Delete a file; not one that a batch still reads."""
    await gateway.batches.files.delete(tenant.name, file_id)
    return DeletedFile(id=file_id)
