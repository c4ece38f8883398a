"""See whether a claim may find anything, at a hundredth of its cost; an idle worker asks before it claims."""

from typing import NamedTuple

from gristmill.shared.keys import LANES
from gristmill.shared.pauses import WHOLE_QUEUE
from gristmill.shared.queue import Queue
from gristmill.shared.snapshot import read_together


class Look(NamedTuple):
    """What an idle worker sees of a queue.

    Attributes:
        has_work: True if a claim may find something.
        next_due_s: Seconds until the next delayed request is due, if nothing else waits; else None.
    """

    has_work: bool
    next_due_s: float | None


async def look_at(queue: Queue) -> Look:
    """Return whether a claim may find anything: waiting, parked or due ids, or inbox elements.

    On an empty queue it costs Redis one command.
    """
    keys = queue.keys
    places = [*map(keys.flows, LANES), keys.inbox, keys.inbox_suspects, keys.parked]
    if not await queue.redis.exists(*places, keys.delayed):
        return Look(has_work=False, next_due_s=None)
    num_places, is_paused, due, (now_s, now_us) = await read_together(
        queue,
        ("EXISTS", *places),
        ("HEXISTS", keys.pauses, WHOLE_QUEUE),
        ("ZRANGE", keys.delayed, 0, 0, "WITHSCORES"),
        ("TIME",),
    )
    if num_places or is_paused or not due:
        return Look(has_work=bool(num_places) and not is_paused, next_due_s=None)
    left_s = max(0.0, float(due[1]) / 1000 - int(now_s) - int(now_us) / 1e6)
    return Look(has_work=left_s == 0, next_due_s=left_s)
