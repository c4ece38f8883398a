"""Pause and resume a queue, or one batch of it. `Queue.pauses` has these operations.

While something is paused, no claim takes from it. Requests that run end, and submits are accepted. A pause lies in
Redis, so it survives restarts of workers and of a Redis that keeps its data.
"""

from dataclasses import dataclass
from typing import Self

import orjson

from gristmill.shared.scripts import Scripts

WHOLE_QUEUE = "queue"


def batch_scope(batch: str) -> str:
    """Return the scope of a batch, as the key `pauses` names it."""
    return f"batch:{batch}"


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
        scripts: Scripts of the queue.
    """

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

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
