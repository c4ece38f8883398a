"""Read the dead letters of a queue, a page at a time, without the megabytes that their requests may have."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gristmill.shared.dead_letters import DeadLetter
from gristmill.shared.queue import Queue
from gristmill.shared.snapshot import read_together

MAX_LETTER_BYTES = 256 * 1024
"""Largest dead letter that a list reads; of a larger one it shows id, time and size."""

MAX_PAGE = 50
"""Most dead letters of a page. So a page reads 12.5 MiB at most."""


@dataclass(frozen=True, slots=True)
class DeadView:
    """One dead letter in a list.

    Attributes:
        id: Its id.
        at_ms: Redis time at which it became a dead letter.
        num_bytes: Bytes of its evidence and its request.
        letter: The dead letter; None if it is larger than `MAX_LETTER_BYTES`.
    """

    id: str
    at_ms: int
    num_bytes: int
    letter: DeadLetter | None


@dataclass(frozen=True, slots=True)
class DeadPage:
    """A page of dead letters.

    Attributes:
        letters: Dead letters, newest first.
        start: Number of newer ones.
        total: Number of all.
    """

    letters: Sequence[DeadView]
    start: int
    total: int


async def read_dead(queue: Queue, *, start: int = 0, limit: int = 25) -> DeadPage:
    """Return a page of dead letters, newest first, in three calls.

    Args:
        queue: The queue.
        start: Number of newer dead letters to skip.
        limit: Most dead letters of the page, up to `MAX_PAGE`.
    """
    keys, last = queue.keys, start + min(limit, MAX_PAGE) - 1
    total, found = await read_together(
        queue,
        ("ZCARD", keys.dead_letters),
        ("ZRANGE", keys.dead_letters, start, last, "REV", "WITHSCORES"),
    )
    ids, times = found[::2], found[1::2]
    sizes = await read_together(queue, *(("HSTRLEN", keys.dead_letter_info, each) for each in ids))
    small = [each for each, size in zip(ids, sizes, strict=True) if 0 < size <= MAX_LETTER_BYTES]
    redis: Any = queue.redis
    blobs = await redis.hmget(keys.dead_letter_info, small) if small else []
    letters = {
        dead_id: DeadLetter.parse(dead_id, blob)
        for dead_id, blob in zip(small, blobs, strict=True)
        if blob
    }
    views = [
        DeadView(dead_id.decode(errors="replace"), int(float(at_ms)), size, letters.get(dead_id))
        for dead_id, at_ms, size in zip(ids, times, sizes, strict=True)
    ]
    return DeadPage(views, start, total)
