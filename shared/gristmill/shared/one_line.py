"""Make one line of a text or a value of any length; for lists, messages, failures and rows."""

from collections.abc import Callable
from typing import Any

import orjson

_LINE_BREAKS = ("\u0085", "\u2028", "\u2029")
"""Line breaks that JSON may hold as they are; it must escape all others."""

_CONTROLS = dict.fromkeys((*range(0x20), *range(0x7F, 0xA0)), "\ufffd")
"""Control characters: an error's message may quote a prompt, and a terminal would obey them."""

_ESCAPES = tuple((mark.encode(), b"\\u%04x" % ord(mark)) for mark in _LINE_BREAKS)


def one_line(text: str, max_characters: int | None = None) -> str:
    """Return a text with its white space as single spaces and without control characters.

    Args:
        text: Any text; pydantic's errors have several lines.
        max_characters: Length to which the line is cut, marked with `...`; None for no limit.
    """
    line = " ".join(text.split()).translate(_CONTROLS)
    if max_characters is None or len(line) <= max_characters:
        return line
    return f"{line[: max_characters - 3]}..."


def shown(value: object) -> str:
    """Return a value for a message, cut to a readable length."""
    try:
        text = repr(value)
    except ValueError:  # an int of more digits than Python writes
        return f"a value of type {type(value).__name__} that cannot be shown"
    return text if len(text) <= 80 else f"{text[:77]}... ({len(text):,} characters)"


def json_line(value: Any, option: int = 0, default: Callable[[Any], Any] | None = None) -> bytes:
    """Return a value as one line of JSON, with its line end.

    It escapes U+0085, U+2028 and U+2029: JSON allows them in texts, but `str.splitlines` and the line
    iterators of HTTP clients end a line there (https://docs.python.org/3/library/stdtypes.html#str.splitlines).

    Args:
        value: Any value that orjson writes.
        option: Options of orjson.
        default: Turns a value that orjson does not write into one that it does.
    """
    line = orjson.dumps(value, default, option | orjson.OPT_APPEND_NEWLINE)
    for mark, escape in _ESCAPES:
        line = line.replace(mark, escape)
    return line
