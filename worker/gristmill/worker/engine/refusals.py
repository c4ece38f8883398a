"""What is refused before the engine sees it, as error bodies in OpenAI's shape.

The same in every transport, and never a silent success: a stream has no one to read it, because a
result is written once and whole, and an endpoint that is not served would answer with a bare 404.
"""

import json
from collections.abc import Sequence
from http import HTTPStatus

import orjson
from pydantic import TypeAdapter, ValidationError

from gristmill.worker.engine.interface import Response

_BOOL = TypeAdapter(bool)

ROOM_LEVELS = 10
"""Levels of nesting that a record, and a batch's row of it, put around an answer, with some to spare."""

MANY_LEVELS = 200
"""A body with fewer brackets is not looked at: orjson reads 1,024 levels and writes 254."""


def error_response(
    status: int, message: str, error_type: str, param: str | None = None
) -> Response:
    """Return an error body of the shape that vLLM and OpenAI use.

    Args:
        status: The HTTP status, repeated in the body as `code`.
        message: What, which value, the limit and the remedy.
        error_type: Such as `BadRequestError`.
        param: The field at fault.
    """
    error = {"message": message, "type": error_type, "param": param, "code": int(status)}
    return Response(int(status), json.dumps({"error": error}, ensure_ascii=False).encode())


def refusal(endpoint: str, body: bytes, endpoints: Sequence[str]) -> Response | None:
    """Return the error body for what this engine cannot answer, or None if it may be posted.

    Args:
        endpoint: The path asked for.
        body: The JSON body; what cannot be read is left to the engine's own error handler.
        endpoints: The paths that the engine serves.
    """
    if endpoint not in endpoints:
        return _not_served(endpoint, endpoints)
    return stream_refusal() if _asks_for_stream(body) else None


def stream_refusal() -> Response:
    """Return the error body for a request that wants a stream."""
    message = (
        "stream is true, but a queued request gets one stored result and no stream; "
        "leave `stream` out or set it to false"
    )
    return error_response(HTTPStatus.BAD_REQUEST, message, "BadRequestError", "stream")


def too_long(limit_s: float) -> Response:
    """Return the error body for a request that ran into its time limit and has no partial text."""
    message = (
        f"the request ran for {limit_s:g} s, the longest this worker allows (GRISTMILL_MAX_REQUEST_S); "
        "lower max_tokens, or raise the limit"
    )
    return error_response(HTTPStatus.REQUEST_TIMEOUT, message, "TimeoutError")


def bounded(response: Response, max_bytes: int) -> Response:
    """Return the response, or the error body that stands in for one that no record can hold.

    Args:
        response: Of the engine.
        max_bytes: What its body may have.
    """
    if len(response.body) > max_bytes:
        return too_large(f"{len(response.body):,}", max_bytes)
    if _is_too_deep(response.body):
        message = "the answer is nested deeper than the 240 levels or so that a result can have"
        return error_response(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message, "ResultTooDeepError")
    return response


def too_large(num_bytes: str, max_bytes: int) -> Response:
    """Return the error body for an answer of too many bytes.

    Args:
        num_bytes: How many, in words.
        max_bytes: How many there may be.
    """
    message = (
        f"the answer has {num_bytes} bytes, the limit is {max_bytes:,} (MAX_RESULT_BYTES); "
        "lower max_tokens, n or logprobs, or raise the limit"
    )
    return error_response(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message, "ResultTooLargeError")


def _is_too_deep(body: bytes) -> bool:
    """Whether what reads the answer could not write it again; the cheap look comes first."""
    if body.count(b"[") + body.count(b"{") < MANY_LEVELS:
        return False
    record = orjson.loads(body)
    for _ in range(ROOM_LEVELS):
        record = [record]
    try:
        orjson.dumps(record)
    except orjson.JSONEncodeError:
        return True
    return False


def _not_served(endpoint: str, endpoints: Sequence[str]) -> Response:
    message = f"endpoint {endpoint} is not served by this model; it serves {', '.join(endpoints)}"
    return error_response(HTTPStatus.NOT_FOUND, message, "NotFoundError", "endpoint")


def _asks_for_stream(body: bytes) -> bool:
    """Whether vLLM would read `stream` as true; the cheap look comes first (1 MB: 20 us)."""
    if b'"stream"' not in body:
        return False
    try:
        return _BOOL.validate_python(json.loads(body)["stream"] or False)
    except (ValueError, TypeError, KeyError, ValidationError, RecursionError):
        return False
