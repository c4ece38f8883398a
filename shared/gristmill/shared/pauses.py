"""Pause and resume a queue, or one batch of it. `Queue.pauses` has these operations.

While something is paused, no claim takes from it. Requests that run end, and submits are accepted. A pause lies in
Redis, so it survives restarts of workers and of a Redis that keeps its data.
"""

import getpass
import os
import socket
from dataclasses import dataclass
from typing import Any, Self

import orjson
from redis.asyncio import Redis, RedisCluster

from gristmill.shared.keys import Keys
from gristmill.shared.scripts import Scripts

WHOLE_QUEUE = "queue"


def batch_scope(batch: str) -> str:
    """Return the scope of a batch, as the key `pauses` names it."""
    return f"batch:{batch}"


def this_user() -> str:
    """Return who runs this process: `user@host`. A container may have a number without a name."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


@dataclass(frozen=True, slots=True)
class Pause:
    """One pause.

    Attributes:
        at_ms: Redis time at which it began.
        by: Who paused, such as `user@host`.
        reason: Why, in the words of that person; may be empty.
    """

    at_ms: int
    by: str
    reason: str

    @classmethod
    def parse(cls, note: bytes) -> Self:
        """Read a value of the HASH `pauses`."""
        fields = orjson.loads(note)
        return cls(fields["at_ms"], fields["by"], fields.get("reason", ""))


class Pauses:
    """The pauses of one queue.

    Args:
        redis: Client of the queue.
        keys: Keys of the queue.
        scripts: Scripts of the queue.
    """

    def __init__(self, redis: Redis | RedisCluster, keys: Keys, scripts: Scripts) -> None:
        self._redis = redis
        self._keys = keys
        self._scripts = scripts

    async def of(self, scope: str) -> Pause | None:
        """Return the pause of the queue or of a batch, or None."""
        note: Any = await self._redis.hget(self._keys.pauses, scope)
        return Pause.parse(note) if note else None

    async def pause(self, scope: str, by: str, reason: str = "") -> bool:
        """Pause the queue or a batch.

        Args:
            scope: `WHOLE_QUEUE`, or a `batch_scope`.
            by: Who pauses.
            reason: Why.

        Returns:
            True; False if it was paused already, which changes nothing.
        """
        note = orjson.dumps({"by": by, "reason": reason})
        return bool(await self._scripts.run("pause", scope, note))

    async def resume(self, scope: str) -> bool:
        """Resume the queue or a batch; return False if it was not paused."""
        return bool(await self._scripts.run("resume", scope))
