"""The files of tenants: uploads, and the results of batches.

Redis has the records of the files, and the storage has their bytes. A file is written in several
steps. If a process dies between two of them, `delete_expired` later removes what it left.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import Any

import structlog
from ulid import ULID

from gristmill.producer.batches.batch_records import BatchRecords, ids_after
from gristmill.producer.batches.objects import BatchRecord, FileRecord, Page, Purpose, page
from gristmill.producer.batches.parts import RowKind, results_folder
from gristmill.producer.batches.settings import BatchSettings
from gristmill.producer.batches.storage import Storage
from gristmill.producer.batches.storage_use import StorageUse
from gristmill.shared.errors import InvalidRequest, NotFound
from gristmill.shared.queue_access import QueueAccess

log = structlog.get_logger()

PURPOSES: tuple[Purpose, ...] = ("batch",)
"""Values of `purpose` that an upload may have."""

UPLOAD_TTL_S = 24 * 3600
"""Longest time of an upload in seconds; `delete_expired` deletes an older one."""

MAX_EXPIRED_FILES = 500
"""Expired files that are looked up at a time."""

KEPT_S = 600
"""Seconds after which an expired file that a batch reads is looked at again."""


class StoredFiles:
    """The files of one queue.

    Args:
        queue: Queue whose Redis has the records.
        storage: Storage of the bytes.
        settings: Limits and TTLs.
        batches: The batches that may read these files.

    Attributes:
        use: The bytes that the storage keeps for each tenant.
    """

    def __init__(
        self, queue: QueueAccess, storage: Storage, settings: BatchSettings, batches: BatchRecords
    ) -> None:
        self._redis: Any = queue.redis
        self._keys = queue.keys
        self._batches = batches
        self.storage = storage
        self.settings = settings
        self.use = StorageUse(queue)

    # --- reading

    async def get(self, tenant: str, file_id: str) -> FileRecord:
        """Return the record of a file.

        Raises:
            NotFound: The tenant has no file of this id.
        """
        blob = await self._redis.get(self._keys.file(file_id))
        record = FileRecord.model_validate_json(blob) if blob else None
        if record is None or record.tenant != tenant:
            raise NotFound(f"no file {file_id!r}: it never existed, was deleted, or has expired")
        return record

    def content(self, file: FileRecord) -> Iterator[bytes]:
        """Yield the bytes of a file; blocks on the storage."""
        return self.storage.chunks(file.path)

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
            tenant: Owner of the files.
            after: Last id of the page before; None for the first page.
            limit: Most files of the page.
            order: asc or desc, by the time of creation.
            purpose: Purpose that the files must have; None for any.
        """
        found: list[FileRecord] = []
        while len(found) <= limit:
            ids = await ids_after(
                self._redis, self._keys.files(tenant), after, limit + 1, is_desc=order == "desc"
            )
            found += [file for file in await self._records(ids) if purpose in (None, file.purpose)]
            if len(ids) <= limit:
                break
            after = ids[-1]
        return page(found, limit)

    async def _records(self, ids: list[str]) -> list[FileRecord]:
        blobs = await self._redis.mget([self._keys.file(file_id) for file_id in ids]) if ids else []
        return [FileRecord.model_validate_json(blob) for blob in blobs if blob]

    # --- writing

    def new_upload(self, tenant: str) -> FileRecord:
        """Return the record of a file that a client is about to upload."""
        return self._new(tenant, "", "batch", None, "files")

    def new_result(self, record: BatchRecord, kind: RowKind) -> FileRecord:
        """Return the record of a batch's output or error file; its size is not known yet."""
        name = f"{record.id}_{kind}.jsonl"
        folder = results_folder(record.id)
        return self._new(record.tenant, name, "batch_output", record.output_expires_after_s, folder)

    def _new(
        self, tenant: str, filename: str, purpose: Purpose, expires_after_s: int | None, folder: str
    ) -> FileRecord:
        now = int(time.time())
        file_id = f"file-{ULID()}"
        return FileRecord(
            id=file_id, bytes=0, created_at=now, filename=filename, purpose=purpose, tenant=tenant,
            expires_at=now + (expires_after_s or self.settings.file_ttl_s), path=Storage.new_path(folder, file_id),
        )  # fmt: skip

    async def begin(self, record: FileRecord) -> None:
        """Note a file before its first byte; it expires within a day unless `add` follows."""
        expires_at = int(time.time()) + UPLOAD_TTL_S
        await self._redis.zadd(self._keys.files_expiring, {record.id: expires_at})
        await self._redis.set(self._keys.file(record.id), record.model_dump_json())

    async def add(self, record: FileRecord) -> None:
        """List a file whose bytes are in the storage.

        Raises:
            InvalidRequest: The file has expired, because its upload took too long.
        """
        if not await self._redis.set(self._keys.file(record.id), record.model_dump_json(), xx=True):
            raise InvalidRequest(
                f"the upload of file {record.id} took more than a day, so the file was deleted;"
                " upload it again"
            )
        await self._redis.zadd(self._keys.files(record.tenant), {record.id: 0})
        await self._redis.zadd(self._keys.files_expiring, {record.id: record.expires_at or 0})

    async def is_listed(self, file: FileRecord) -> bool:
        """Return True if the file is complete and nobody deletes it."""
        return await self._redis.zscore(self._keys.files(file.tenant), file.id) is not None

    # --- deleting

    async def delete(self, tenant: str, file_id: str) -> None:
        """Delete a file.

        Raises:
            NotFound: The tenant has no file of this id.
            InvalidRequest: The file is the input of a batch that has not ended.
        """
        file = await self.get(tenant, file_id)
        if reader := await self._reader_of(file):
            raise InvalidRequest(
                f"file {file_id} is the input of batch {reader}, which has not ended; wait for it, or cancel it"
            )
        await self.remove(file)

    async def delete_expired(self, may_go_on: Callable[[], bool] = lambda: True) -> int:
        """Delete expired files, and return their number.

        A file that an unfinished batch reads stays; it is due again after `KEPT_S`. Batches need no
        such call: their records have a TTL, and lists leave out missing batches.

        Args:
            may_go_on: Called before each file; False ends the call.
        """
        num_deleted = 0
        while (expired := await self._expired()) and may_go_on():
            in_use: dict[str, set[str]] = {}
            for file in takewhile(lambda _: may_go_on(), expired):
                if file.tenant not in in_use:
                    in_use[file.tenant] = await self._inputs_of(file.tenant)
                if file.id in in_use[file.tenant]:
                    kept_until = int(time.time()) + KEPT_S
                    await self._redis.zadd(self._keys.files_expiring, {file.id: kept_until})
                    continue
                await self.remove(file)
                num_deleted += 1
                log.info("file.expired", file=file.id, tenant=file.tenant, bytes=file.bytes)
        return num_deleted

    async def _inputs_of(self, tenant: str) -> set[str]:
        """Return the ids of the files that unfinished batches of a tenant read."""
        return {batch.input_file_id for batch in await self._batches.open_batches(tenant)}

    async def remove(self, file: FileRecord) -> None:
        """Delete a file, even if a batch reads it.

        A listed file always has its bytes, so it first leaves the list. The record goes last, so that a failed call
        can be repeated.
        """
        await self._redis.zrem(self._keys.files(file.tenant), file.id)
        await asyncio.to_thread(self.storage.delete, file.path)
        await self.forget(file)

    async def forget(self, record: FileRecord) -> None:
        """Delete the record of a file; its bytes are gone already."""
        await self.use.free(record.tenant, record.id)
        await self._redis.zrem(self._keys.files(record.tenant), record.id)
        await self._redis.unlink(self._keys.file(record.id))
        await self._redis.zrem(self._keys.files_expiring, record.id)

    async def _expired(self) -> list[FileRecord]:
        """Return expired files, and remove ids without a record, whose file is gone."""
        now = int(time.time())
        ids = await self._redis.zrange(
            self._keys.files_expiring, 1, now, byscore=True, offset=0, num=MAX_EXPIRED_FILES
        )
        records = []
        for file_id in ids:
            blob = await self._redis.get(self._keys.file(file_id.decode()))
            if blob:
                records.append(FileRecord.model_validate_json(blob))
            else:
                await self._redis.zrem(self._keys.files_expiring, file_id)
        return records

    async def _reader_of(self, file: FileRecord) -> str | None:
        """Return a batch that has not ended and reads a file, or None."""
        open_batches = await self._batches.open_batches(file.tenant)
        readers = (batch.id for batch in open_batches if batch.input_file_id == file.id)
        return next(readers, None)
