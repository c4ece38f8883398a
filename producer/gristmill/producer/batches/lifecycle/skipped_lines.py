"""The lines of a lenient batch to which validation gave an error row: execution skips them."""

from array import array
from bisect import bisect_left
from typing import Self

from gristmill.producer.batches.storage import Storage


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
