"""How full the KV cache will be: what runs grows by a token a step, and is gone when it ends.

The sum of what all take by their ends is safe and too much: they do not end at the same time.
"""

from collections.abc import Iterable
from typing import NamedTuple


class Course(NamedTuple):
    """What one request does to the cache.

    Attributes:
        remaining: Tokens that it will add, one a step, before it ends.
        held: Tokens that it has in it now.
    """

    remaining: float
    held: float


def num_fitting(courses: Iterable[Course], newcomer: Course, size: float) -> float:
    """Return how many newcomers fit beside what runs, so that the cache is never more than full.

    The use is largest just before an end, so only ends are looked at, and the end of the newcomers.

    Args:
        courses: Of what runs.
        newcomer: Of each that would start now.
        size: Tokens that may be promised.
    """
    longest_first = sorted(courses, reverse=True)
    horizon, num_alive, held = newcomer.remaining, 0, 0.0
    for remaining, tokens in longest_first:
        if remaining <= horizon:
            break
        num_alive += 1
        held += tokens
    num_fit = (size - held - num_alive * horizon) / max(1.0, newcomer.held + horizon)
    for remaining, tokens in longest_first[num_alive:]:
        num_alive += 1
        held += tokens
        free = size - held - num_alive * remaining
        num_fit = min(num_fit, free / max(1.0, newcomer.held + remaining))
    return max(0.0, min(num_fit, (size - held) / max(1.0, newcomer.held)))
