"""Rows that are in memory until `flush` writes them into the storage."""

from gristmill.producer.batches.parts import Part, RowKind, parts_folder
from gristmill.producer.batches.storage import Storage

MAX_BUFFER_BYTES = 16 * 2**20
"""Bytes of rows after which the owner of a buffer should flush it."""


class RowBuffer:
    """The rows of one batch since the last `flush`, in the order in which they were added.

    Args:
        storage: Storage that gets the rows.
        batch: Id of the batch.
    """

    def __init__(self, storage: Storage, batch: str) -> None:
        self._storage = storage
        self._folder = parts_folder(batch)
        self._rows: dict[RowKind, bytearray] = {"output": bytearray(), "error": bytearray()}
        self._parts: list[Part] = []

    @property
    def num_bytes(self) -> int:
        """Bytes of the rows in memory."""
        return sum(map(len, self._rows.values()))

    def add(self, kind: RowKind, row: bytes) -> None:
        """Add a row that ends with its line end."""
        self._rows[kind] += row

    def flush(self) -> None:
        """Write the rows into new objects, the parts. Readers see a part once it is committed."""
        for kind, rows in self._rows.items():
            if rows:
                path = self._storage.new_path(self._folder, kind)
                self._storage.write(path, bytes(rows))
                self._parts.append(Part(kind, path, len(rows)))
                rows.clear()

    def take_parts(self) -> list[Part]:
        """Return the parts that were written since the last call."""
        parts, self._parts = self._parts, []
        return parts
