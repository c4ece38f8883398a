"""Pause and resume a queue, or one batch of it. `queue_pauses.py` has the operations.

While something is paused, no claim takes from it. Requests that run end, and submits are accepted. A pause lies in
Redis, so it survives restarts of workers and of a Redis that keeps its data.
"""

import getpass
import os
import socket
from dataclasses import dataclass
from typing import Self

import orjson

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
