"""Pause and resume a queue or one of its batches; `Queue.pauses` has these operations."""

from typing import Any

import orjson

from gristmill.shared.keys import Keys
from gristmill.shared.pauses import Pause, check_reason
from gristmill.shared.redis_types import AnyRedis, ScriptRunner


class Pauses:
    """The pauses of one queue.

    Args:
        redis: Client of the queue.
        keys: Keys of the queue.
        scripts: ScriptRunner of the queue.
    """

    def __init__(self, redis: AnyRedis, keys: Keys, scripts: ScriptRunner) -> None:
        self._redis = redis
        self._keys = keys
        self._scripts = scripts

    async def of(self, scope: str) -> Pause | None:
        """Return the pause of the queue or of a batch, or None."""
        note: Any = await self._redis.hget(self._keys.pauses, scope)
        return Pause.parse(note) if note else None

    async def all(self) -> dict[str, Pause]:
        """Return each paused scope with its pause."""
        notes: Any = await self._redis.hgetall(self._keys.pauses)
        return {scope.decode(): Pause.parse(note) for scope, note in notes.items()}

    async def pause(self, scope: str, by: str, reason: str = "", *, call: str = "") -> bool:
        """Pause the queue or a batch.

        Args:
            scope: `WHOLE_QUEUE`, or a `batch_scope`.
            by: Who pauses.
            reason: Why, as one line of up to `MAX_REASON` characters.
            call: Unique name of this call; the same call sent again after a lost reply returns the same.

        Returns:
            True; False if it was paused already or the batch has completed, which changes nothing.

        Raises:
            InvalidRequest: The reason is not allowed.
        """
        check_reason(reason)
        note = {"by": by, "reason": reason} | ({"call": call} if call else {})
        return bool(await self._scripts.run("pause", scope, orjson.dumps(note)))

    async def resume(self, scope: str) -> bool:
        """Resume the queue or a batch; return False if it was not paused."""
        return bool(await self._scripts.run("resume", scope))
