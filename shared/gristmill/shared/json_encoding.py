"""Write the body and the metadata of a request as JSON; refuse what JSON cannot hold, and metadata over its limit."""

import json
from collections.abc import Mapping
from typing import Any

import orjson

from gristmill.shared.errors import InvalidRequest

MAX_METADATA_BYTES = 64 * 2**10
"""Most bytes of a request's metadata as JSON; records, results and rows repeat it, and no limit of a tenant counts it.

OpenAI allows 16 pairs of 64 and 512 characters, some 9 KB.
"""


def check_metadata(metadata: Mapping[str, Any], request_id: str | None = None) -> None:
    """Check that metadata can be written as JSON within `MAX_METADATA_BYTES`; an error names the request.

    Raises:
        InvalidRequest: It is too large, or the same cases as in `encode_body`.
    """
    encoded = encode_metadata(metadata, request_id)
    if len(encoded) > MAX_METADATA_BYTES:
        raise InvalidRequest(
            f"its metadata has {len(encoded):,} bytes as JSON; the limit is {MAX_METADATA_BYTES:,}; keep the data"
            " yourself and send its key",
            request_id=request_id,
        )
    _check_finite("metadata", metadata, encoded, request_id)


def encode_metadata(metadata: Mapping[str, Any], request_id: str | None = None) -> bytes:
    """Return the JSON of metadata; an error names the request.

    Raises:
        InvalidRequest: The metadata has a lone surrogate, or a type that JSON lacks.
    """
    return _encode("metadata", metadata, request_id)


def encode_body(body: Mapping[str, Any]) -> bytes:
    """Return the JSON of a body.

    Raises:
        InvalidRequest: The body has a lone surrogate, a number that is not finite, or a type that
            JSON lacks.
    """
    encoded = _encode("body", body)
    _check_finite("body", body, encoded)
    return encoded


def _encode(what: str, value: Mapping[str, Any], request_id: str | None = None) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError as error:
        raise _not_json(what, error, request_id) from error


def _check_finite(
    what: str, value: Mapping[str, Any], encoded: bytes, request_id: str | None = None
) -> None:
    """Refuse NaN and infinity, which orjson has written as null."""
    try:
        if b"null" in encoded:
            json.dumps(value, allow_nan=False, default=str)
    except (TypeError, ValueError, RecursionError) as error:
        raise _not_json(what, error, request_id) from error


def _not_json(what: str, error: Exception, request_id: str | None) -> InvalidRequest:
    message = (
        f"the {what} cannot be written as JSON: {error}; use str, int, finite float, bool, None,"
        " list, dict"
    )
    return InvalidRequest(message, request_id=request_id)
