"""Find and remove the files and batches of one tenant, or of all, with their objects in the storage.

`producer/…/purge.py` calls it. An object goes before the record that names it, so that a purge which was killed finds
the rest when it runs again.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import orjson

from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.batches.child_batches import child_id
from gristmill.producer.batches.objects import FINAL_STATUSES, FileRecord
from gristmill.producer.batches.parts import parts_folder, results_folder
from gristmill.producer.batches.storage import REACH_STORAGE
from gristmill.shared.chunking import chunks
from gristmill.shared.errors import SettingsError
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
        known_ids: Ids of all files and batches that were found so far, and of their children in other queues.
        num_held: Batches and children that stewards held at the last `stop_batches`.
    """

    def __init__(self, store: BatchStore, tenant: str | None) -> None:
        self._store = store
        self._redis: Any = store.queue.redis
        self._keys = store.queue.keys
        self._tenant = tenant
        self.known_ids: set[str] = set()
        self.num_held = 0

    def kinds(self) -> list[DataKind]:
        """Return the kinds in the order in which they must be removed."""
        return [
            DataKind("files", self._files, self._remove_files),
            DataKind("batches", self._batches, self._remove_batches),
        ]

    async def count(self) -> int:
        """Return how many files and batches there are."""
        num_files = sum([len(files) async for files in self._files()])
        return num_files + sum([len(batches) async for batches in self._batches()])

    async def check_storage(self, *, may_lack_objects: bool = False) -> None:
        """Check that the storage has what the records name. Changes nothing; does nothing without a record.

        Args:
            may_lack_objects: True accepts that objects are missing, after the loss of a storage.

        Raises:
            SettingsError: The storage is absent, cannot be written, or lacks an object.
        """
        if not await self.count():
            return
        await asyncio.to_thread(self._store.storage.check_existing)
        if may_lack_objects:
            return
        async for files in self._files():
            for file in files:
                if await self._is_lost(file.path) and await self._store.files.is_listed(file):
                    raise self._lost(f"file {file.id}", file.path)
        async for batches in self._batches():
            for batch, _ in batches:
                await self._check_parts(batch)

    async def _is_lost(self, path: str) -> bool:
        return not await asyncio.to_thread(self._store.storage.exists, path)

    async def _check_parts(self, batch: str) -> None:
        """Check the parts of a batch; a steward deletes those of an ended one before it forgets them."""
        record, _ = await self._store.records.record_and_slices(batch)
        if record is None or record.status in FINAL_STATUSES:
            return
        for part in await self._store.records.parts(batch):
            if await self._is_lost(part.path):
                raise self._lost(f"batch {batch}", part.path)

    def _lost(self, subject: str, path: str) -> SettingsError:
        return SettingsError(
            f"{subject} of queue {self._keys.queue} names the object {path}, which the storage"
            f" {self._store.storage.url} lacks; nothing was deleted; {REACH_STORAGE};"
            " if the object is lost for good, add --lost-objects"
        )

    async def stop_batches(self) -> list[str]:
        """Cancel the batches that have not ended, and take them and their children from their stewards.

        Returns:
            The ids of all batches of this queue.
        """
        found = []
        self.num_held = 0
        async for batches in self._batches():
            for batch, _ in batches:
                found.append(batch)
                for store, each in [*await self._children(batch), (self._store, batch)]:
                    self.num_held += await store.records.fence(each)
        return found

    async def held_children(self) -> list[str]:
        """Return the children in other queues that a steward has leased."""
        found: list[str] = []
        async for batches in self._batches():
            for batch, _ in batches:
                children = await self._children(batch)
                found += [
                    child for store, child in children if await store.records.is_leased(child)
                ]
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
            for store, child in await self._children(batch):
                await _remove(store, owner, child)
            num_removed += await _remove(self._store, owner, batch)
        return num_removed

    async def _children(self, batch: str) -> list[tuple[BatchStore, str]]:
        """Return the children of a batch, each with the store of its queue, and note their ids."""
        record, _ = await self._store.records.record_and_slices(batch)
        queues = record.children if record else ()
        found = [(self._store.of_queue(queue), child_id(batch, queue)) for queue in queues]
        self.known_ids.update(child for _, child in found)
        return found


async def _remove(store: BatchStore, owner: str, batch: str) -> int:
    """Remove a batch with its objects; return 1, or 0 if it did not exist."""
    await store.records.fence(batch)
    await store.records.forget_parts(owner, batch)
    for folder in (parts_folder(batch), results_folder(batch)):
        await asyncio.to_thread(store.storage.delete_folder, folder)
    return await store.records.forget(owner, batch)
