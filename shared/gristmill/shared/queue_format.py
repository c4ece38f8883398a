"""Check that this version can read a queue, and say what to do if it cannot.

Scripts that begin with the check of `lua/includes/format.lua` refuse such a queue themselves. Entry points call
`check_format` first: commands, the first call of a client, gateway, steward, and a worker before its engine starts.
"""

from typing import Any

from redis.exceptions import ResponseError

from gristmill.shared.connection import AnyRedis
from gristmill.shared.errors import WrongFormat
from gristmill.shared.keys import Keys

FORMAT = "1"
"""Version of keys and records; `lua/includes/types.lua` has the same."""

NO_FORMAT = "0"
"""Stands for the format of versions before 0.1.0, which wrote none."""


async def check_format(redis: AnyRedis, keys: Keys) -> None:
    """Check that this version wrote the queue, or one of the same format. A queue without keys passes.

    Raises:
        WrongFormat: Another version wrote it.
    """
    connected: Any = redis
    try:
        # In this order: the first submit writes both at once.
        is_used = await connected.hexists(keys.stats, "submitted")
        found = await connected.get(keys.format)
    except ResponseError as error:
        if not str(error).startswith("WRONGTYPE"):
            raise
        return  # `gristmill queue audit` names the key
    if found is None and is_used:
        raise wrong_format(keys.queue, NO_FORMAT)
    if found not in (None, FORMAT.encode()):
        raise wrong_format(keys.queue, found.decode(errors="replace"))


def wrong_format(queue: str, format_of_queue: str) -> WrongFormat:
    """Return the error for a queue of another format."""
    if format_of_queue == NO_FORMAT:
        return WrongFormat(
            f"a version of Gristmill before 0.1.0 wrote queue {queue}, and this version reads format {FORMAT}. Let"
            " workers of that version finish it, use another queue (--queue, GRISTMILL_QUEUE), or delete it with all"
            f" its data: gristmill queue purge --queue {queue}"
        )
    return WrongFormat(
        f"queue {queue} has format {format_of_queue}, and this version of Gristmill reads format {FORMAT}. Upgrade this"
        " Gristmill to the version of the queue's workers, or use another queue (--queue, GRISTMILL_QUEUE)"
    )
