"""One file on its way into the storage; it is listed when it is whole."""

import asyncio
from typing import BinaryIO, Self

from gristmill.producer.batches.objects import FileObject, FileRecord
from gristmill.producer.batches.registry import Registry
from gristmill.producer.batches.storage import Storage
from gristmill.shared.errors import InvalidRequest


class Upload:
    """A file that is being written, within `async with`; what is not finished there is thrown away.

    It is noted before its first byte, so that the sweep finds what a killed process leaves behind.

    Args:
        registry: Where it is listed.
        storage: Where it lies.
        record: What is known of it so far.
        max_bytes: What it may have.
    """

    def __init__(
        self, registry: Registry, storage: Storage, record: FileRecord, max_bytes: int
    ) -> None:
        self._registry = registry
        self._storage = storage
        self._record = record
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._stream: BinaryIO | None = None
        self._is_listed = False

    async def __aenter__(self) -> Self:
        await self._registry.begin_file(self._record)
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self._is_listed:
            await asyncio.to_thread(self._discard)
            await self._registry.remove_file(self._record)

    def write(self, data: bytes) -> None:
        """Append bytes; blocks on the storage.

        Raises:
            InvalidRequest: The file gets too large.
        """
        self._num_bytes += len(data)
        if self._num_bytes > self._max_bytes:
            raise InvalidRequest(
                f"the file has more than {self._max_bytes:,} bytes, the limit (GRISTMILL_MAX_FILE_BYTES); split it",
                "file_too_large",
            )
        self._opened().write(data)

    async def finish(self, filename: str, expires_after_s: int | None = None) -> FileObject:
        """List the file.

        Args:
            filename: For people.
            expires_after_s: How long it is kept from its beginning on; `GRISTMILL_FILE_TTL_S` if None.

        Raises:
            InvalidRequest: It took so long that it was swept away.
        """
        await asyncio.to_thread(lambda: self._opened().close())
        told = {"bytes": self._num_bytes, "filename": filename}
        if expires_after_s is not None:
            told["expires_at"] = self._record.created_at + expires_after_s
        record = self._record.model_copy(update=told)
        await self._registry.add_file(record)
        self._is_listed = True
        return record

    def _opened(self) -> BinaryIO:
        if self._stream is None:
            self._stream = self._storage.create(self._record.path)
        return self._stream

    def _discard(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._storage.delete(self._record.path)
