"""Project how full the KV cache will be: a request grows by a token a step and leaves at its end.

`kv_cache.py` calls this module, because the sum of all final lengths would be too large a bound:
requests end at different times.
"""

from collections.abc import Iterable
from typing import NamedTuple


class Course(NamedTuple):
    """The use of the cache by one request.

    Attributes:
        remaining: Tokens that the request will add, one a step, before it ends.
        held: Tokens of the request in the cache now.
    """

    remaining: float
    held: float


def num_fitting(courses: Iterable[Course], newcomer: Course, size: float) -> float:
    """Return how many newcomers fit with the running requests, without ever overfilling the cache.

    The use is largest just before an end. So it is enough to check each running request's end, the
    newcomers' end and the start.

    Args:
        courses: Courses of the running requests.
        newcomer: Course of each request that would start now.
        size: Tokens that the worker may promise.
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
