"""How full the KV cache will be: what runs grows by a token a step, and is gone when it ends.

The sum of what all take by their ends is safe and too much: they do not end at the same time.
"""

from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple


class Course(NamedTuple):
    """What one request does to the cache.

    Attributes:
        held: Tokens that it has in it now.
        remaining: Tokens that it will add, one a step, before it ends.
    """

    held: float
    remaining: float


def num_fitting(courses: Iterable[Course], newcomer: Course, size: float) -> float:
    """Return how many newcomers fit beside what runs, so that the cache is never more than full.

    The use is largest just before an end, so only ends are looked at, and the end of the newcomers.

    Args:
        courses: Of what runs.
        newcomer: Of each that would start now.
        size: Tokens that may be promised.
    """
    ordered = sorted(courses, key=attrgetter("remaining"), reverse=True)
    held = 0.0
    fitting: list[float] = []
    for num_longer, course in enumerate((*ordered, Course(0, 0))):
        if not fitting and course.remaining < newcomer.remaining:
            fitting.append(_fitting(num_longer, held, newcomer, newcomer.remaining, size))
        held += course.held
        if course.remaining <= newcomer.remaining:
            fitting.append(_fitting(num_longer + 1, held, newcomer, course.remaining, size))
    return max(0.0, min(fitting))


def _fitting(num_alive: int, held: float, newcomer: Course, step: float, size: float) -> float:
    """At one step from now: what is free, over what a newcomer has by then."""
    return (size - held - num_alive * step) / max(1.0, newcomer.held + step)
