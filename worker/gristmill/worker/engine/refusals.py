"""Write error bodies in OpenAI's format, for requests and answers that the worker refuses.

All transports refuse the same requests before the engine sees them:

- a request for a stream whose events nobody takes, because it then gets one whole result;
- a request to an endpoint that the engine does not serve, because vLLM's 404 names no endpoints;
- a request for more sequences than the engine runs at a time, because it would hold up all others;
- a request with a field or a constraint whose cost would fall on all others (`field_limits.py`,
  `constraint_limits.py` of shared).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError

from gristmill.shared.constraint_limits import constraint_excess
from gristmill.shared.lenient_body import fields_of
from gristmill.worker.engine.field_limits import field_excess
from gristmill.worker.engine.interface import Response
from gristmill.worker.engine.sequences import count_sequences, max_sequences

_BOOL = TypeAdapter(bool)

ROOM_LEVELS = 10
"""Levels of nesting to keep free around an answer.

The record, and the row of a batch, nest the answer in a few levels; the rest are spare.
"""

MANY_LEVELS = 200
"""Opening brackets in a body from which `_is_too_deep` measures its depth.

orjson reads 1,024 levels but writes only 254. A body with fewer brackets cannot be that deep.
"""


def error_response(
    status: int, message: str, error_type: str, param: str | None = None
) -> Response:
    """Return an error body in the format that vLLM and OpenAI use.

    Args:
        status: The HTTP status, repeated in the body as `code`.
        message: Text with the event, the value, the limit and the remedy.
        error_type: OpenAI's error type, such as `BadRequestError`.
        param: Name of the field at fault, if there is one.
    """
    error = {"message": message, "type": error_type, "param": param, "code": int(status)}
    return Response(int(status), json.dumps({"error": error}, ensure_ascii=False).encode())


def refusal(
    endpoint: str,
    body: bytes,
    endpoints: Sequence[str],
    max_num_seqs: int,
    *,
    may_stream: bool = False,
) -> Response | None:
    """Return the error body for a request that this engine cannot or must not answer; otherwise None.

    Args:
        endpoint: The path that the request names.
        body: The JSON body. The engine's own error handler answers an unreadable one.
        endpoints: The paths that the engine serves.
        max_num_seqs: Sequences that the engine runs at the same time.
        may_stream: True if somebody takes the events of a stream.
    """
    if endpoint not in endpoints:
        return _not_served(endpoint, endpoints)
    fields = fields_of(body)
    if not may_stream and _asks_for_stream(fields):
        return stream_refusal()
    return _too_many_sequences(endpoint, fields, max_num_seqs) or _too_large_field(fields)


def stream_refusal() -> Response:
    """Return the error body for a request that asks for a stream."""
    message = (
        "stream is true, but a queued request gets one stored result and no stream; "
        "leave `stream` out or set it to false"
    )
    return _refused(HTTPStatus.BAD_REQUEST, message, "BadRequestError", "stream")


def too_long(limit_s: float) -> Response:
    """Return the error body for a request that met its time limit and has no partial text."""
    message = (
        f"the request ran for {limit_s:g} s, the longest this worker allows (GRISTMILL_MAX_REQUEST_S); "
        "lower max_tokens, or raise the limit"
    )
    return _refused(HTTPStatus.REQUEST_TIMEOUT, message, "TimeoutError")


def constraint_failed(cause: str) -> Response:
    """Return the error body for a request whose constraint the engine accepted but could not keep to.

    Args:
        cause: The engine's words.
    """
    message = (
        f"the constraint on the answer (response_format or structured_outputs) failed in the engine: {cause};"
        " simplify it, or leave it out"
    )
    return _refused(HTTPStatus.BAD_REQUEST, message, "BadRequestError", "structured_outputs")


def bounded(response: Response, max_bytes: int) -> Response:
    """Return the response, or an error body if no record can hold the response.

    Args:
        response: The engine's response.
        max_bytes: Largest body in bytes.
    """
    if len(response.body) > max_bytes:
        return _instead_of(response, too_large(f"{len(response.body):,}", max_bytes))
    if _is_too_deep(response.body):
        message = "the answer has more levels of nesting than a result can hold (about 240)"
        refused = _refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message, "ResultTooDeepError")
        return _instead_of(response, refused)
    return response


def too_large(num_bytes: str, max_bytes: int) -> Response:
    """Return the error body for an answer of too many bytes.

    Args:
        num_bytes: Text for the number of bytes, such as `more than 1,024`.
        max_bytes: Largest answer in bytes.
    """
    message = (
        f"the answer has {num_bytes} bytes, the limit is {max_bytes:,} (MAX_RESULT_BYTES); "
        "lower max_tokens, n or logprobs, or raise the limit"
    )
    return _refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message, "ResultTooLargeError")


def refused_by_redis(num_bytes: int) -> Response:
    """Return the error body for an answer that Redis does not store.

    Args:
        num_bytes: Bytes of the answer.
    """
    message = (
        f"the answer has {num_bytes:,} bytes, more than Redis takes; lower max_tokens, n or logprobs, or"
        " raise its proto-max-bulk-len and client-query-buffer-limit"
    )
    return _refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message, "ResultTooLargeError")


def _instead_of(response: Response, refused: Response) -> Response:
    """Return an error body that keeps what the engine used for the answer."""
    return replace(
        refused,
        prompt_tokens=response.prompt_tokens,
        output_tokens=response.output_tokens,
        cached_tokens=response.cached_tokens,
        device_ms=response.device_ms,
        model=response.model,
    )


def _is_too_deep(body: bytes) -> bool:
    """Return whether the record of this answer is nested too deeply to be written.

    The function counts the brackets first, because that is cheap.
    """
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
    return _refused(HTTPStatus.NOT_FOUND, message, "NotFoundError", "endpoint")


def _too_many_sequences(
    endpoint: str, fields: Mapping[str, Any], max_num_seqs: int
) -> Response | None:
    number, limit = count_sequences(endpoint, fields), max_sequences(endpoint, max_num_seqs)
    if number <= limit:
        return None
    message = (
        f"the request asks for {number:,} sequences (n times the number of prompts, or the number of inputs);"
        f" the limit is {limit:,} (the engine runs {max_num_seqs:,} at a time, --max-num-seqs);"
        " split it into several requests"
    )
    return _refused(HTTPStatus.BAD_REQUEST, message, "BadRequestError", "n")


def _too_large_field(fields: Mapping[str, Any]) -> Response | None:
    excess = field_excess(fields) or constraint_excess(fields)
    if excess is None:
        return None
    name, message = excess
    return _refused(HTTPStatus.BAD_REQUEST, message, "BadRequestError", name)


def _asks_for_stream(fields: Mapping[str, Any]) -> bool:
    """Return whether vLLM would read `stream` as true."""
    try:
        return _BOOL.validate_python(fields.get("stream") or False)
    except ValidationError:
        return False


def _refused(status: int, message: str, error_type: str, param: str | None = None) -> Response:
    return replace(error_response(status, message, error_type, param), is_refusal=True)
