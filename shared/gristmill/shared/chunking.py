"""Split long sequences into chunks, so that no call to Redis grows without bound.

Every caller that names many ids in one call comes here: a script over a million ids would block Redis.
"""

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield consecutive slices of a sequence.

    Args:
        items: Sequence to split; slices are of its type.
        size: Items in each chunk, at least 1; the last chunk may hold fewer.
    """
    for start in range(0, len(items), size):
        yield items[start : start + size]
