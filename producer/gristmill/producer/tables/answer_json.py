"""Find the JSON object in the text of an answer."""

import json
from typing import Any

import orjson

MAX_TRIES = 100
"""Braces at which an object may begin and does not; each costs a look at the whole answer."""

_DECODER = json.JSONDecoder(strict=False)
"""It takes line breaks and other control characters within texts, which engines let pass in texts of a limited length."""


def json_object_in(text: str, *, is_cut: bool) -> dict[str, Any] | None:
    """Return the object that an answer gives, or None.

    The whole text may be the object. Otherwise the last whole object in the text counts, so it may stand in a
    fence of Markdown, and after words. No brace may close after it, since it would be a part of a broken object.
    After `MAX_TRIES` braces that begin no object, the answer has none.

    Args:
        text: The answer.
        is_cut: True if the answer ended at its limit. Then an object that does not end is the answer, and neither
            what stands in it nor an earlier object counts.
    """
    try:
        whole = orjson.loads(text)
    except ValueError:
        return _last_object(text, is_cut=is_cut)
    return whole if isinstance(whole, dict) else None


def _last_object(text: str, *, is_cut: bool) -> dict[str, Any] | None:
    found: Any = None
    rest, start, num_tries = 0, text.find("{"), 0
    while start >= 0:
        if num_tries == MAX_TRIES:
            return None
        try:
            found, rest = _DECODER.raw_decode(text, start)
            end = rest
        except json.JSONDecodeError as error:
            if is_cut:
                return None
            end = max(error.pos, start + 1)
            num_tries += 1
        except (ValueError, RecursionError):  # an integer of more than 4,300 digits; too deep
            return None
        start = text.find("{", end)
    if found is None or "}" in text[rest:]:
        return None
    try:
        return dict(orjson.loads(json.dumps(found)))
    except (ValueError, RecursionError):  # half of a surrogate pair, or NaN; too deep
        return None
