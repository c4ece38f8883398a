"""Split long sequences into chunks, so that no call to Redis grows without bound.

Every caller that names many ids in one call comes here: a script over a million ids would block Redis.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield consecutive slices of a sequence.

    Args:
        items: Sequence to split; slices are of its type.
        size: Items in each chunk, at least 1; the last chunk may hold fewer.
    """
    for start in range(0, len(items), size):
        yield items[start : start + size]


def pairs(flat: Sequence[Any]) -> Iterable[tuple[str, Any]]:
    """Yield the fields of a HASH or ZSET, as a script returns them. A stray name that is no UTF-8 stops no reader."""
    return ((name.decode(errors="replace"), value) for name, value in chunks(flat, 2))
