"""Upload a file into the storage. Clients see the file once it is complete."""

import asyncio
from typing import BinaryIO, Self

from gristmill.producer.batches.objects import FileObject
from gristmill.producer.batches.stored_files import StoredFiles
from gristmill.shared.errors import InvalidRequest


class Upload:
    """A file that is being written. `async with` deletes a file that is unfinished at its end.

    Redis gets a record of the file before its first byte. So `StoredFiles.delete_expired` finds
    what a killed process leaves.

    Args:
        files: The files of the queue.
        tenant: Owner of the new file.
    """

    def __init__(self, files: StoredFiles, tenant: str) -> None:
        self._files = files
        self._record = files.new_upload(tenant)
        self._max_bytes = files.settings.max_file_bytes
        self._num_bytes = 0
        self._stream: BinaryIO | None = None
        self._is_listed = False

    @property
    def file_id(self) -> str:
        """Id of the new file."""
        return self._record.id

    async def __aenter__(self) -> Self:
        await self._files.begin(self._record)
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self._is_listed:
            await asyncio.to_thread(self._discard)
            await self._files.forget(self._record)

    def write(self, data: bytes) -> None:
        """Append bytes; blocks on the storage.

        Raises:
            InvalidRequest: The file has more than `GRISTMILL_MAX_FILE_BYTES`.
        """
        self._num_bytes += len(data)
        if self._num_bytes > self._max_bytes:
            raise InvalidRequest(
                f"the file has more than {self._max_bytes:,} bytes, the limit; split it, or ask the operator to"
                " raise GRISTMILL_MAX_FILE_BYTES",
                "file_too_large",
            )
        self._opened().write(data)

    async def reserve(self, num_bytes: int) -> None:
        """Take this number of bytes from the tenant's quota before they come.

        Raises:
            StorageQuotaReached: The quota has no room for them.
        """
        await self._files.use.keep(self._record.tenant, self._record.id, num_bytes)

    async def finish(self, filename: str, expires_after_s: int | None = None) -> FileObject:
        """List the file and return it.

        Args:
            filename: Name that people see.
            expires_after_s: Seconds from the start of the upload after which the file is deleted;
                None for `GRISTMILL_FILE_TTL_S`.

        Raises:
            InvalidRequest: The upload took more than a day, so the file was deleted.
            StorageQuotaReached: The tenant's quota has no room for the file.
        """
        await self.reserve(self._num_bytes)
        await asyncio.to_thread(lambda: self._opened().close())
        known = {"bytes": self._num_bytes, "filename": filename}
        if expires_after_s is not None:
            known["expires_at"] = self._record.created_at + expires_after_s
        record = self._record.model_copy(update=known)
        await self._files.add(record)
        self._is_listed = True
        return record

    def _opened(self) -> BinaryIO:
        if self._stream is None:
            self._stream = self._files.storage.create(self._record.path)
        return self._stream

    def _discard(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._files.storage.delete(self._record.path)
