"""Say what a pause command has done; `gristmill queue pause` and `gristmill batch pause` call it."""

import re

from gristmill.producer.known_names import is_unused, unknown_queue
from gristmill.shared.pauses import WHOLE_QUEUE
from gristmill.shared.queue import Queue

_OF_STEWARD = re.compile(r"batch_[0-9A-Z]{26}")
"""An id that `gristmill batch create` or the gateway gave."""


async def told_of_pause(queue: Queue, scope: str, reason: str, *, is_new: bool) -> str:
    """Return what a pause has done.

    Args:
        queue: The queue.
        scope: What was to be paused.
        reason: Reason that the caller gave.
        is_new: False if the call changed nothing.
    """
    subject = _subject(queue, scope)
    if is_new:
        doubt = _doubt_of_queue if scope == WHOLE_QUEUE else _doubt_of_batch
        return f"{subject} is paused{await doubt(queue, scope)}"
    held = await queue.pauses.of(scope)
    if held is None:
        return f"{subject} has ended; there is nothing to pause"
    dropped = "; your reason was not noted: resume first to replace it" if reason else ""
    return f"{subject} was paused already {held.in_words()}{dropped}"


def _subject(queue: Queue, scope: str) -> str:
    name = queue.keys.queue
    return f"queue {name}" if scope == WHOLE_QUEUE else f"batch {scope.partition(':')[2]}"


async def _doubt_of_queue(queue: Queue, _: str) -> str:
    """Return a hint if nobody has used the queue, whose name may be misspelt."""
    if not await is_unused(queue):
        return ""
    return f", although nobody has used it yet: {await unknown_queue(queue)}"


async def _doubt_of_batch(queue: Queue, scope: str) -> str:
    """Return a hint if the batch has no trace: a client's batch gets one when its first request ends."""
    batch = scope.partition(":")[2]
    if await queue.redis.exists(queue.keys.batch(batch), queue.keys.batch_record(batch)):
        return ""
    return "; none of its requests has ended yet: if some should have, check the name"


async def is_named_by_client(queue: Queue, batch: str) -> bool:
    """Return True for a name that only a client can have given, as with `submit --batch`."""
    if _OF_STEWARD.fullmatch(batch):
        return False
    return not await queue.redis.exists(queue.keys.batch_record(batch))
