"""Find and remove the files and batches of one tenant, or of all, with their objects in the storage.

`producer/…/purge.py` calls it. An object goes before the record that names it, so that a purge which was killed finds
the rest when it runs again.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import orjson

from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.batches.objects import FileRecord
from gristmill.producer.batches.parts import parts_folder, results_folder
from gristmill.shared.chunking import chunks
from gristmill.shared.key_scan import scan_names
from gristmill.shared.tenant_data import DataKind

REMOVED_A_STEP = 50
"""Files or batches in one chunk; a remote storage may take 50 ms for each."""


class FilePurge:
    """The files and batches to remove.

    Args:
        store: The batches and files of the queue.
        tenant: Their owner; None for all tenants.

    Attributes:
        known_ids: Ids of all files and batches that were found so far.
    """

    def __init__(self, store: BatchStore, tenant: str | None) -> None:
        self._store = store
        self._redis: Any = store.queue.redis
        self._keys = store.queue.keys
        self._tenant = tenant
        self.known_ids: set[str] = set()

    def kinds(self) -> list[DataKind]:
        """Return the kinds in the order in which they must be removed."""
        return [
            DataKind("files", self._files, self._remove_files),
            DataKind("batches", self._batches, self._remove_batches),
        ]

    async def stop_batches(self) -> list[str]:
        """Cancel the batches that have not ended, and take them from their stewards; return the ids of all batches."""
        found = []
        async for batches in self._batches():
            for batch, _ in batches:
                found.append(batch)
                await self._store.records.fence(batch)
        return found

    # --- files

    async def _files(self) -> AsyncIterator[list[FileRecord]]:
        """Yield files, also those that are being uploaded."""
        async for ids in scan_names(self._store.queue, "file"):
            blobs = await self._redis.mget([self._keys.file(file_id) for file_id in ids])
            records = [FileRecord.model_validate_json(blob) for blob in blobs if blob]
            mine = [record for record in records if self._tenant in (None, record.tenant)]
            self.known_ids.update(record.id for record in mine)
            for chunk in chunks(mine, REMOVED_A_STEP):
                yield list(chunk)

    async def _remove_files(self, files: Sequence[FileRecord]) -> int:
        for file in files:
            await self._store.files.remove(file)
        return len(files)

    # --- batches

    async def _batches(self) -> AsyncIterator[list[tuple[str, str]]]:
        """Yield each batch with its tenant."""
        async for ids in scan_names(self._store.queue, "batch_record"):
            owners = [(batch, await self._owner(batch)) for batch in ids]
            mine = [(batch, owner) for batch, owner in owners if owner is not None and self._tenant in (None, owner)]  # fmt: skip
            self.known_ids.update(batch for batch, _ in mine)
            for chunk in chunks(mine, REMOVED_A_STEP):
                yield list(chunk)

    async def _owner(self, batch: str) -> str | None:
        """Return the tenant of a batch. One that was found before and has lost its record belongs to this purge."""
        record = await self._redis.hget(self._keys.batch_record(batch), "record")
        if record is None:
            return (self._tenant or "") if batch in self.known_ids or not self._tenant else None
        return str(orjson.loads(record)["tenant"])

    async def _remove_batches(self, batches: Sequence[tuple[str, str]]) -> int:
        num_removed = 0
        for batch, owner in batches:
            await self._store.records.fence(batch)
            for folder in (parts_folder(batch), results_folder(batch)):
                await asyncio.to_thread(self._store.storage.delete_folder, folder)
            num_removed += await self._store.records.forget(owner, batch)
        return num_removed
