"""Rows that are not in the storage yet; `flush` writes them as parts, each an object of its own."""

from typing import Literal

from gristmill.producer.batches.progress import Part
from gristmill.producer.batches.storage import Storage

Kind = Literal["output", "error"]
MAX_BYTES = 16 * 2**20
"""Bytes of rows after which they should be flushed."""


def folder_of(batch: str) -> str:
    """Return the folder in which everything of an unfinished batch lies."""
    return f"batches/{batch}"


def results_folder_of(batch: str) -> str:
    """Return the folder in which the output and the error file of a batch lie."""
    return f"results/{batch}"


class Rows:
    """Rows in the order in which they were added.

    Args:
        storage: Where `flush` writes them.
        batch: Whose rows they are.
    """

    def __init__(self, storage: Storage, batch: str) -> None:
        self._storage = storage
        self._folder = folder_of(batch)
        self._rows: dict[Kind, bytearray] = {"output": bytearray(), "error": bytearray()}
        self._parts: list[Part] = []

    @property
    def num_bytes(self) -> int:
        """Bytes of the rows that are in memory."""
        return sum(map(len, self._rows.values()))

    def add(self, kind: Kind, row: bytes) -> None:
        """Add a row, line end included."""
        self._rows[kind] += row

    def flush(self) -> None:
        """Write what is in memory; nobody reads it before `take` is committed."""
        for kind, rows in self._rows.items():
            if rows:
                path = self._storage.new_path(self._folder, kind)
                self._storage.write(path, bytes(rows))
                self._parts.append(Part(kind, path, len(rows)))
                rows.clear()

    def take(self) -> list[Part]:
        """Return the parts that were flushed since the last `take`."""
        parts, self._parts = self._parts, []
        return parts
