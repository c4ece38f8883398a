"""Pause and resume a queue, or one batch of it. `queue_pauses.py` has the operations.

While something is paused, no claim takes from it. Running requests finish, and submits are accepted. A pause lies in
Redis, so it survives restarts of workers and of a Redis that keeps its data.
"""

import getpass
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

import orjson

from gristmill.shared.answers import mapping
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.one_line import shown

WHOLE_QUEUE = "queue"

MAX_REASON = 200
"""Most characters of a reason, which is shown within one line."""


MAX_MS = 253_402_300_799_999
"""Last moment that has a date."""


def batch_scope(batch: str) -> str:
    """Return the scope of a batch, as the key `pauses` names it."""
    return f"batch:{batch}"


def check_reason(reason: object) -> None:
    """Check the reason of a pause.

    Raises:
        InvalidRequest: It is no text, too long, or has line breaks or other control characters.
    """
    if not isinstance(reason, str):
        raise InvalidRequest(f"reason is a {type(reason).__name__}; use a text, or leave it out")
    if len(reason) > MAX_REASON:
        raise InvalidRequest(
            f"the reason has {len(reason):,} characters; the limit is {MAX_REASON}; shorten it"
        )
    if not reason.isprintable():
        raise InvalidRequest(
            f"the reason {shown(reason)} has a line break or another control character; use one line of text"
        )


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

    def in_words(self) -> str:
        """Return since when, by whom and why, for a sentence about what is paused."""
        since = datetime.fromtimestamp(self.at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"since {since} by {self.by}" + (f": {self.reason}" if self.reason else "")

    @classmethod
    def parse(cls, note: bytes) -> Self:
        """Read a value of the HASH `pauses`, as far as it can be read."""
        fields = _fields(note)
        at_ms, by, reason = fields.get("at_ms"), fields.get("by"), fields.get("reason")
        return cls(
            at_ms if isinstance(at_ms, int) and 0 <= at_ms <= MAX_MS else 0,
            by if isinstance(by, str) else "somebody",
            reason if isinstance(reason, str) else "",
        )


def _fields(note: bytes) -> Mapping[str, Any]:
    """Return the fields of a note. One that is no JSON is shown as it is: a pause must not stop its readers."""
    try:
        return mapping(orjson.loads(note))
    except ValueError:
        return {"reason": note.decode(errors="replace")}


def pause_in_words(queue: str, pauses: Mapping[str, Pause], batch: str = "") -> str | None:
    """Return what is paused and how to resume it, or None.

    Args:
        queue: Name of the queue.
        pauses: Scope -> its pause, as in `Stats`.
        batch: Batch whose pause matters too; "" for none.
    """
    for scope, subject, command in (
        (WHOLE_QUEUE, f"queue {queue}", "queue resume"),
        (batch_scope(batch), f"batch {batch}", f"batch resume {batch}"),
    ):
        if pause := pauses.get(scope):
            resume = f"gristmill {command} --queue {queue}"
            return f"{subject} is paused {pause.in_words()}; to resume it: {resume}"
    return None
