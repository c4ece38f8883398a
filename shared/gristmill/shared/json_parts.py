"""Bound the memory and time of parsing JSON from outside, before it is parsed.

A parser makes some 30 bytes of Python objects of one byte of `[],`, and holds the interpreter's lock meanwhile. So the
length of a text does not bound its cost. The number of its parts does, and counting them costs milliseconds.
"""

from gristmill.shared.errors import InvalidRequest

MAX_JSON_PARTS = 2_000_000
"""Most brackets, braces, commas and colons of one element, those in its texts included.

Objects for so many parts need at most some 200 MB. A prompt of a million token ids has half as many parts. A text of
32 MiB in a natural language has fewer than a million, and an image in base64 none.
"""

_MARKS = (b"[", b"{", b",", b":")


def has_too_many_parts(raw: bytes) -> bool:
    """Return True if a JSON text would need too much memory to parse."""
    return len(raw) > MAX_JSON_PARTS and _num_parts(raw) > MAX_JSON_PARTS


def check_parts(raw: bytes) -> None:
    """Refuse a JSON text that would need too much memory to parse.

    Raises:
        InvalidRequest: It has more than `MAX_JSON_PARTS` parts.
    """
    if has_too_many_parts(raw):
        raise InvalidRequest(
            f"its JSON has {_num_parts(raw):,} brackets, braces, commas and colons; the limit is"
            f" {MAX_JSON_PARTS:,}; split the request into several"
        )


def _num_parts(raw: bytes) -> int:
    return sum(raw.count(mark) for mark in _MARKS)
