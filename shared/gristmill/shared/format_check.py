"""Check that this version can read a queue, and say what to do if it cannot.

Scripts that begin with the check of `lua/includes/format.lua` refuse such a queue themselves. Entry points call
`check_format` first: commands, the first call of a client, gateway, steward, and a worker before its engine starts.
"""

from typing import Any

from redis.exceptions import ResponseError

from gristmill.shared.keys import Keys
from gristmill.shared.queue_format import FORMAT, NO_FORMAT, wrong_format
from gristmill.shared.redis_types import AnyRedis


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
