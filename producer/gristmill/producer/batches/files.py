"""The files of tenants: uploads, and the results of batches."""

import asyncio
import time
from collections.abc import Iterator

from ulid import ULID

from gristmill.producer.batches.objects import BatchRecord, FileRecord, Page, Purpose, page
from gristmill.producer.batches.parts import results_folder_of
from gristmill.producer.batches.registry import Registry
from gristmill.producer.batches.settings import BatchSettings
from gristmill.producer.batches.storage import Storage
from gristmill.producer.batches.upload import Upload
from gristmill.shared.errors import InvalidRequest

PURPOSES: tuple[Purpose, ...] = ("batch",)
"""What an upload may be for."""


class Files:
    """The files of one queue.

    Args:
        registry: Where they are listed.
        storage: Where they lie.
        settings: What bounds them.
    """

    def __init__(self, registry: Registry, storage: Storage, settings: BatchSettings) -> None:
        self._registry = registry
        self._storage = storage
        self._settings = settings

    def upload(self, tenant: str) -> Upload:
        """Return a file of a tenant that is yet to be written."""
        record = self._new(tenant, "", "batch", None, "files")
        return Upload(self._registry, self._storage, record, self._settings.max_file_bytes)

    async def page(
        self,
        tenant: str,
        *,
        after: str | None = None,
        limit: int = 10_000,
        order: str = "desc",
        purpose: str | None = None,
    ) -> Page:
        """Return a page of a tenant's files.

        Args:
            tenant: Whose.
            after: The last id of the page before.
            limit: How many.
            order: asc or desc, by the time at which they were made.
            purpose: Only these.
        """
        found: list[FileRecord] = []
        while len(found) <= limit:
            more = await self._registry.files(tenant, after=after, limit=limit + 1, order=order)
            found += [file for file in more if purpose in (None, file.purpose)]
            if len(more) <= limit:
                break
            after = more[-1].id
        return page(found, limit)

    async def get(self, tenant: str, file_id: str) -> FileRecord:
        """Return a file.

        Raises:
            NotFound: This tenant has none of this id.
        """
        return await self._registry.file(tenant, file_id)

    def content(self, file: FileRecord) -> Iterator[bytes]:
        """Yield the bytes of a file; blocks on the storage."""
        return self._storage.chunks(file.path)

    async def delete(self, tenant: str, file_id: str) -> None:
        """Delete a file.

        Raises:
            NotFound: This tenant has none of this id.
            InvalidRequest: A batch that has not ended reads it.
        """
        file = await self._registry.file(tenant, file_id)
        if reader := await self.reader_of(file):
            raise InvalidRequest(
                f"file {file_id} is the input of batch {reader}, which has not ended; wait for it, or cancel it"
            )
        await self.remove(file)

    async def reader_of(self, file: FileRecord) -> str | None:
        """Return a batch that has not ended and reads a file, or None."""
        open_batches = await self._registry.open_batches(file.tenant)
        readers = (batch.id for batch in open_batches if batch.input_file_id == file.id)
        return next(readers, None)

    async def remove(self, file: FileRecord) -> None:
        """Delete a file, whoever reads it."""
        await asyncio.to_thread(self._storage.delete, file.path)  # first: what fails is tried again
        await self._registry.remove_file(file)

    def new_result(self, record: BatchRecord, kind: str) -> FileRecord:
        """Return the record of a batch's output or error file, with its size still to be told."""
        name = f"{record.id}_{kind}.jsonl"
        folder = results_folder_of(record.id)
        return self._new(record.tenant, name, "batch_output", record.output_expires_after_s, folder)

    def _new(
        self,
        tenant: str,
        filename: str,
        purpose: Purpose,
        expires_after_s: int | None,
        folder: str,
    ) -> FileRecord:
        now = int(time.time())
        file_id = f"file-{ULID()}"
        return FileRecord(
            id=file_id, bytes=0, created_at=now, filename=filename, purpose=purpose, tenant=tenant,
            expires_at=now + (expires_after_s or self._settings.file_ttl_s), path=Storage.new_path(folder, file_id),
        )  # fmt: skip
