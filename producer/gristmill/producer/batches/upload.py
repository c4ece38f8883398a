"""One file on its way into the storage; it is listed when it is whole."""

from typing import BinaryIO

from gristmill.producer.batches.objects import FileObject, FileRecord
from gristmill.producer.batches.registry import Registry
from gristmill.producer.batches.storage import Storage
from gristmill.shared.errors import InvalidRequest


class Upload:
    """A file that is being written.

    Args:
        registry: Where it is listed.
        storage: Where it lies.
        record: With its size still 0.
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
        self._stream: BinaryIO = storage.create(record.path)

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
        self._stream.write(data)

    async def finish(self) -> FileObject:
        """List the file."""
        self._stream.close()
        record = self._record.model_copy(update={"bytes": self._num_bytes})
        await self._registry.add_file(record)
        return record

    def abort(self) -> None:
        """Throw away what was written; blocks on the storage."""
        self._stream.close()
        self._storage.delete(self._record.path)
