"""Parse the body of a request as leniently as vLLM does."""

import json
from collections.abc import Mapping
from typing import Any

import orjson

from gristmill.shared.answers import mapping


def fields_of(body: bytes) -> Mapping[str, Any]:
    """Return the fields of a body; none if vLLM cannot read it either.

    orjson comes first, because it is fast. vLLM reads with the standard library, which also takes
    NaN, UTF-16 and half of a surrogate pair, so a limit must not end where orjson's JSON does.

    Args:
        body: The request's body, of any bytes.
    """
    try:
        return mapping(orjson.loads(body))
    except ValueError:
        pass
    try:
        return mapping(json.loads(body))
    except (ValueError, RecursionError):
        return {}
