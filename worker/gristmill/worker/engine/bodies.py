"""Read and change the JSON bodies of requests and answers; every transport calls this module."""

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Annotated, Any

import orjson
from pydantic import Field, TypeAdapter

from gristmill.shared.answers import cached_tokens, mapping, token_counts
from gristmill.shared.lenient_body import fields_of
from gristmill.worker.engine.interface import Response
from gristmill.worker.engine.refusals import error_response

_INT = TypeAdapter(Annotated[int, Field(ge=-(2**63), lt=2**63)])

ABORTED = "abort"
"""finish_reason of a generation that the engine aborted."""

MAX_MODEL_CHARS = 256
"""Most characters of a model's name, as in a request; a longer one in an answer counts as none."""

MAX_QUOTED_BYTES = 500
"""Most bytes of a body that is not JSON to quote in the error."""


def with_priority(body: bytes, priority: int | None) -> bytes:
    """Return the body with vLLM's field `priority` set, in the place of a value that the body names.

    Args:
        body: A JSON object. Anything else is returned unchanged, and the engine refuses it.
        priority: vLLM's priority; 0, vLLM's default, leaves a body without the field unchanged. None, for
            an engine that is not vLLM, takes the field out.
    """
    if not priority and "priority" not in fields_of(body):
        return body
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return body
    if not isinstance(fields, dict):
        return body
    fields.pop("priority", None)
    return json.dumps(fields if priority is None else fields | {"priority": priority}).encode()


def response_of(status: int, body: bytes) -> Response:
    """Return the response with the token counts and the finish_reason that its body names.

    A body that is not JSON (a proxy's HTML, NaN, a lone surrogate) would make the record that holds
    it invalid. The function then returns an error that quotes the body.

    Args:
        status: The HTTP status.
        body: The answer's bytes, of any content.
    """
    try:
        fields = orjson.loads(body)
    except ValueError as error:
        quoted = body[:MAX_QUOTED_BYTES].decode(errors="replace")
        message = f"the server answered {status} with {len(body):,} bytes that are not JSON ({error}): {quoted}"
        is_error = status >= HTTPStatus.BAD_REQUEST
        code = status if is_error else HTTPStatus.INTERNAL_SERVER_ERROR
        return error_response(code, message, "BadGatewayError")
    return described(status, body, fields)


def described(status: int, body: bytes, fields: Any) -> Response:
    """Return the response with the facts in `fields`, its parsed body.

    It reads three formats: OpenAI's completions, OpenAI's Responses and Anthropic's Messages.
    """
    if not isinstance(fields, dict):
        return Response(status, body)
    prompt_tokens, output_tokens = token_counts(fields)
    return Response(
        status,
        body,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        cached_tokens=cached_tokens(fields),
        finish_reason=_finish_reason(fields),
        model=_model(fields),
    )


def seed_of(body: bytes) -> int | None:
    """Return the sampling seed in the body of a request; None if it has none.

    It reads a seed as vLLM does: "7" is 7, and -1 is none (`SamplingParams`). The function searches for the
    bytes first, because that is cheap.

    Args:
        body: The request's body, of any bytes.
    """
    if b'"seed"' not in body:
        return None
    try:
        seed = _INT.validate_python(orjson.loads(body)["seed"])
    except (ValueError, TypeError, KeyError):
        return None
    return None if seed == -1 else seed


def _model(fields: Mapping[str, Any]) -> str:
    model = fields.get("model")
    return model if isinstance(model, str) and len(model) <= MAX_MODEL_CHARS else ""


def _finish_reason(fields: Mapping[str, Any]) -> str | None:
    """Return the first choice's finish_reason; if any of n choices was aborted, `abort`."""
    choices = fields.get("choices")
    if not isinstance(choices, list):
        return fields.get("stop_reason")
    reasons = [mapping(choice).get("finish_reason") for choice in choices]
    if ABORTED in reasons:
        return ABORTED
    return reasons[0] if reasons else None
