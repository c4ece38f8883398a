"""The lines that validation has given their row already, in a lenient batch."""

from array import array
from bisect import bisect_left
from typing import Self

from gristmill.producer.batches.storage import Storage


class Skipped:
    """Numbers of lines, 8 bytes each.

    Args:
        numbers: Ascending.
    """

    def __init__(self, numbers: "array[int]") -> None:
        self._numbers = numbers

    @classmethod
    def read(cls, storage: Storage, path: str) -> Self:
        """Read them from the storage; "" is none."""
        numbers = array("Q")
        if path:
            numbers.frombytes(b"".join(storage.chunks(path)))
        return cls(numbers)

    def __contains__(self, number: int) -> bool:
        found = bisect_left(self._numbers, number)
        return found < len(self._numbers) and self._numbers[found] == number
