"""The custom_ids and metadata of lines, and the lines of one file that have the same custom_id."""

from array import array
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

import orjson

from gristmill.producer.batches.rows.lines import BadLine, Line
from gristmill.shared.answers import mapping
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.json_parts import has_too_many_parts
from gristmill.shared.known_fields import UNKNOWN_FIELD, unknown_in_words
from gristmill.shared.one_line import shown
from gristmill.shared.request import Request
from gristmill.shared.request_json import MAX_CUSTOM_ID
from gristmill.shared.results import Result

MAX_NAMED = 1000
"""Duplicates whose earlier line is looked up; a look-up reads 8 bytes a line."""


class Names(NamedTuple):
    """What a line calls itself: its custom_id and its other metadata; None for what it lacks."""

    custom_id: str | None
    metadata: Mapping[str, Any] | None


def custom_id_of(request: Request) -> str:
    """Return the name of a line's request: its `custom_id`, else its `id`, else its number."""
    return str((request.metadata or {})["custom_id"])


def names_of(named: Request | Result) -> Names:
    """Return the custom_id and the metadata of a line's request or result."""
    metadata = dict(named.metadata or {})
    custom_id = metadata.pop("custom_id", None)
    return Names(None if custom_id is None else str(custom_id), metadata or None)


def bad_line(line: Line, reason: str, code: str) -> BadLine:
    """Return the error of a line that is no request, with the names that can be read from it."""
    try:
        fields = {} if has_too_many_parts(line.raw) else mapping(orjson.loads(line.raw))
    except ValueError:
        fields = {}
    texts = (_as_text(fields.get(name)) for name in ("custom_id", "id"))
    metadata = mapping(fields.get("metadata")) if "body" in fields else None
    return BadLine(line.number, reason, next(filter(None, texts), None), code, metadata)


def bad_request(
    number: int, request: Request, reason: str, code: str = InvalidRequest.code
) -> BadLine:
    """Return the error of a line whose request may not run."""
    custom_id, metadata = names_of(request)
    return BadLine(number, reason, custom_id, code, metadata)


def unknown_fields_of(number: int, request: Request) -> BadLine:
    """Return the warning, or the error, about a line whose body has `unknown_fields`."""
    words = unknown_in_words(request.unknown_fields, request.endpoint)
    return bad_request(number, request, words, UNKNOWN_FIELD)


class CustomIds:
    """The custom_ids of a file as 8-byte digests: 80 MB for a million lines.

    Args:
        by_line: Digests of the lines that were read before, as `digests` returned them.
        num_duplicates: Most duplicates that they may have.
    """

    def __init__(self, by_line: "array[int] | None" = None, num_duplicates: int = 0) -> None:
        self._by_line = array("Q") if by_line is None else by_line
        self._digests = set(self._by_line)
        self._num_duplicates = num_duplicates

    def add(self, custom_id: str, number: int) -> int | None:
        """Remember a line's custom_id and return the earlier line that has it, or None.

        After `MAX_NAMED` duplicates, return 0 instead of looking up the earlier line.
        """
        digest = _digest(custom_id)
        is_new = digest not in self._digests
        self._digests.add(digest)
        self._pad(number - 1)
        self._by_line.append(digest if is_new else 0)
        if is_new:
            return None
        self._num_duplicates += 1
        return 0 if self._num_duplicates > MAX_NAMED else self._by_line.index(digest) + 1

    def digests(self, num_lines: int) -> "array[int]":
        """Return one digest for each line; 0 for a line whose custom_id was not added, or is another line's."""
        self._pad(num_lines)
        return self._by_line

    def _pad(self, num_lines: int) -> None:
        self._by_line.extend([0] * (num_lines - len(self._by_line)))


def duplicate_line(number: int, request: Request, first: int) -> BadLine:
    """Return the error for a custom_id already used on line `first`; 0 stands for an earlier line."""
    custom_id = custom_id_of(request)
    earlier = f"line {first:,}" if first else "an earlier line"
    reason = f"custom_id {shown(custom_id)} stands on {earlier} too; give each line its own"
    return bad_request(number, request, reason, "duplicate_custom_id")


def _as_text(value: Any) -> str | None:
    """Return a text or a number as the text of a custom_id; None for any other value."""
    is_name = isinstance(value, str | int | float) and not isinstance(value, bool)
    return str(value)[:MAX_CUSTOM_ID] if is_name else None


def _digest(custom_id: str) -> int:
    return int.from_bytes(blake2b(custom_id.encode(), digest_size=8).digest()) or 1
