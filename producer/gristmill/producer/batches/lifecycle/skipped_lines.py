"""The lines of its input that a batch does not run: those with an error row of validation, or those of other queues."""

from array import array
from bisect import bisect_left
from typing import Self

from gristmill.producer.batches.batch_state import Checkpoint, ChildPlan
from gristmill.producer.batches.storage import Storage

SLICE_LINES = 2**19
"""Lines whose queues a child holds in memory, two bytes each: ten reads for five million lines."""


def skipped_lines(storage: Storage, checkpoint: Checkpoint) -> "SkippedLines | LinesOfOthers":
    """Return the numbers of the lines that a batch does not run. Blocks on the storage, as look-ups do."""
    if checkpoint.child_lines:
        return LinesOfOthers(storage, checkpoint.child_lines)
    return SkippedLines.read(storage, checkpoint.skipped)


class LinesOfOthers:
    """The lines of a file that a child leaves to others. Read for rising line numbers; reads a slice at a time.

    Args:
        storage: Storage of the object with the queue of each line.
        lines: The lines of the child.
    """

    def __init__(self, storage: Storage, lines: ChildPlan) -> None:
        self._storage = storage
        self._lines = lines
        self._first = 1
        self._queues = array("H")

    def __contains__(self, number: int) -> bool:
        if not self._first <= number < self._first + len(self._queues):
            self._read_from(number)
        return self._queues[number - self._first] != self._lines.queue_number

    def _read_from(self, number: int) -> None:
        queues = array("H")
        with self._storage.open(self._lines.path, (number - 1) * queues.itemsize) as stream:
            queues.frombytes(stream.read(SLICE_LINES * queues.itemsize))
        self._first, self._queues = number, queues


class SkippedLines:
    """Line numbers in the storage, 8 bytes each.

    Args:
        numbers: The line numbers, in ascending order.
    """

    def __init__(self, numbers: "array[int]") -> None:
        self._numbers = numbers

    @classmethod
    def read(cls, storage: Storage, path: str) -> Self:
        """Read the numbers from an object; the path "" stands for no numbers."""
        numbers = array("Q")
        if path:
            numbers.frombytes(b"".join(storage.chunks(path)))
        return cls(numbers)

    def __contains__(self, number: int) -> bool:
        found = bisect_left(self._numbers, number)
        return found < len(self._numbers) and self._numbers[found] == number
