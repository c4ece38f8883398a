"""An uploaded file on its way into the storage, and the repeat of an upload, which is only compared."""

import asyncio
from collections.abc import Awaitable, Callable
from hashlib import sha256

from fastapi import Request

from gristmill.producer.batches.batch_service import Batches
from gristmill.producer.batches.creations import CreationKey
from gristmill.producer.batches.objects import FileObject
from gristmill.producer.batches.upload import Upload
from gristmill.producer.gateway.http_errors import too_large
from gristmill.producer.gateway.request_body import declared_bytes, unstalled
from gristmill.producer.gateway.upload_form import FORM_BYTES, FileFacts, UploadForm
from gristmill.shared.errors import GristmillError, NotFound

CHUNK_BYTES = 2**20
"""Bytes of one write; a thread for each packet would cost more than the write itself."""

Reserve = Callable[[int], Awaitable[None]]


class FileUpload:
    """One call that uploads a file.

    Args:
        batches: The files of the queue.
        tenant: Owner of the file.
        request: The HTTP call; its body is the form.
        key: The Idempotency-Key, or None.
    """

    def __init__(self, batches: Batches, tenant: str, request: Request, key: str | None) -> None:
        self._batches, self._tenant, self._request, self._key = batches, tenant, request, key
        self._max_file_bytes = batches.files.settings.max_file_bytes
        self._digest = sha256()

    def check_length(self) -> None:
        """Check the declared length of the body.

        Raises:
            ApiError: 413: the file is too large.
        """
        if declared_bytes(self._request) > self._max_file_bytes + FORM_BYTES:
            raise too_large("the file", self._max_file_bytes, "GRISTMILL_MAX_FILE_BYTES")

    async def run(self) -> FileObject:
        """Store the file and return it; return the first file if the call repeats an upload.

        Raises:
            ApiError: 400 for a wrong form; 408 if it stalls; 413 for a file that is too large.
            IdConflict: The key belongs to another call.
            StorageQuotaReached: The tenant's quota has no room for the file.
        """
        if self._key is not None and (first := await self._first(self._key)):
            await self._receive(self._digest.update, _no_reserve)
            await self._batches.store.creations.find_same(self._tenant, self._asked(self._key))
            return first
        async with Upload(self._batches.files, self._tenant) as upload:
            await upload.reserve(max(0, declared_bytes(self._request) - FORM_BYTES))
            facts = await self._receive(self._write_to(upload), upload.reserve)
            if self._key is None:
                return await upload.finish(*facts)
            return await self._finish(upload, facts, self._key)

    async def _first(self, key: str) -> FileObject | None:
        """Return the file that the key has created, or None."""
        found = await self._batches.store.creations.find(self._tenant, key)
        try:
            return await self._batches.files.get(self._tenant, found[1]) if found else None
        except NotFound:  # it was a batch, it died, or it is deleted
            return None

    def _asked(self, key: str) -> CreationKey:
        return CreationKey(key, self._digest.hexdigest())

    def _write_to(self, upload: Upload) -> Callable[[bytes], None]:
        if self._key is None:
            return upload.write

        def write(data: bytes) -> None:
            self._digest.update(data)
            upload.write(data)

        return write

    async def _finish(self, upload: Upload, facts: FileFacts, key: str) -> FileObject:
        """List the file, unless the same call has created one meanwhile."""
        creations, asked = self._batches.store.creations, self._asked(key)
        if await creations.claim(self._tenant, asked, upload.file_id) != upload.file_id:
            if first := await self._first(key):
                return first
            await creations.replace(self._tenant, asked, upload.file_id)
        try:
            return await upload.finish(*facts)
        except GristmillError:
            await creations.release(self._tenant, key)
            raise

    async def _receive(self, write: Callable[[bytes], None], reserve: Reserve) -> FileFacts:
        """Parse the form while it comes; blocking writes run in a thread."""
        form = UploadForm(self._request.headers.get("content-type", ""), write)
        num_bytes, unwritten = 0, bytearray()
        async for chunk in unstalled(self._request.stream()):
            num_bytes += len(chunk)
            if num_bytes > self._max_file_bytes + FORM_BYTES:
                raise too_large("the file", self._max_file_bytes, "GRISTMILL_MAX_FILE_BYTES")
            unwritten += chunk
            if len(unwritten) >= CHUNK_BYTES:
                if not declared_bytes(self._request):
                    await reserve(num_bytes)
                await asyncio.to_thread(form.receive, bytes(unwritten))
                unwritten.clear()
        await asyncio.to_thread(form.receive, bytes(unwritten))
        facts = form.finished()
        self._digest.update(repr(facts).encode())
        return facts


async def _no_reserve(num_bytes: int) -> None:
    """Reserve nothing: a repeated upload is not stored."""
