"""Facts of a request: names and values after the fixed fields of its header. No Redis here.

A later version may add facts. Every version carries those along that it does not know. A name that begins with `!` says
that a worker must understand the fact, because it changes the answer; other workers do not get the request.
docs/protocol.md has the format.
"""

import re
from collections.abc import Mapping

from gristmill.shared.errors import InvalidRequest

MAX_FACTS_CHARS = 1024
"""Most characters of all facts of a request; `lua/submit.lua` bounds the whole tail at 2,048."""

_NAME = re.compile(r"!?[a-z][a-z0-9_]{0,31}")
_VALUE = re.compile(r"[A-Za-z0-9._:/@=+,;-]{0,512}")


def encode_facts(facts: Mapping[str, str]) -> str:
    """Return the text that follows the last field of a header: `|name=value` for each fact.

    Raises:
        InvalidRequest: A name or value has another form, or all are too long together.
    """
    for name, value in facts.items():
        if not _NAME.fullmatch(name):
            raise InvalidRequest(
                f"fact {name!r} is not allowed; use a lower-case letter, then up to 31 of a-z, 0-9 and _, with ! in"
                " front if a worker must understand it"
            )
        if not _VALUE.fullmatch(value):
            raise InvalidRequest(
                f"fact {name} has the value {value!r}, which is not allowed; use up to 512 letters, digits or any"
                " of . _ : / @ = + , ; -"
            )
    text = "".join(f"|{name}={value}" for name, value in facts.items())
    if len(text) > MAX_FACTS_CHARS:
        raise InvalidRequest(
            f"the facts have {len(text):,} characters; the limit is {MAX_FACTS_CHARS:,}; shorten them"
        )
    return text
