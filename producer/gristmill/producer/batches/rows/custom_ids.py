"""The custom_ids of lines, and the lines of one file that have the same one."""

from array import array
from hashlib import blake2b

import orjson

from gristmill.producer.batches.rows.lines import BadLine, Line
from gristmill.shared.names import shown
from gristmill.shared.request import Request
from gristmill.shared.request_json import MAX_CUSTOM_ID

MAX_NAMED = 1000
"""Duplicates whose earlier line is looked up; a look-up reads 8 bytes a line."""


def custom_id_of(request: Request) -> str:
    """Return the name of a line's request: its `custom_id`, else its `id`, else its number."""
    return str((request.metadata or {})["custom_id"])


def custom_id_of_line(line: Line) -> str:
    """Return the custom_id of a line that is no request; its number if none can be read."""
    try:
        custom_id = orjson.loads(line.raw)["custom_id"]
    except (ValueError, TypeError, KeyError, IndexError):
        return str(line.number)
    return custom_id[:MAX_CUSTOM_ID] if isinstance(custom_id, str) else str(line.number)


class CustomIds:
    """The custom_ids of a file as 8-byte digests: 80 MB for a million lines."""

    def __init__(self) -> None:
        self._digests: set[int] = set()
        self._by_line = array("Q")
        self._num_duplicates = 0

    def add(self, custom_id: str, number: int) -> int | None:
        """Remember a line's custom_id and return the earlier line that has it, or None.

        After `MAX_NAMED` duplicates, return 0 instead of looking up the earlier line.
        """
        digest = _digest(custom_id)
        is_new = digest not in self._digests
        self._digests.add(digest)
        self._by_line.extend([0] * (number - 1 - len(self._by_line)))
        self._by_line.append(digest if is_new else 0)
        if is_new:
            return None
        self._num_duplicates += 1
        return 0 if self._num_duplicates > MAX_NAMED else self._by_line.index(digest) + 1


def duplicate_line(number: int, request: Request, first: int) -> BadLine:
    """Return the error for a custom_id already used on line `first`; 0 stands for an earlier line."""
    custom_id = custom_id_of(request)
    earlier = f"line {first:,}" if first else "an earlier line"
    reason = f"custom_id {shown(custom_id)} stands on {earlier} too; give each line its own"
    return BadLine(number, reason, custom_id, "duplicate_custom_id")


def _digest(custom_id: str) -> int:
    return int.from_bytes(blake2b(custom_id.encode(), digest_size=8).digest())
