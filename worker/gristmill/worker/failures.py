"""Name the kind of a failed run, and whose fault it may be.

`runner.py` and `worker_brake.py` call this module; `failure_brake.py` counts the failures. A kind never has text of a
message, because messages contain ids and numbers.
"""

import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import orjson

from gristmill.shared.answers import mapping
from gristmill.shared.one_line import one_line
from gristmill.worker.engine.interface import Response

MAX_MESSAGE_CHARS = 200
"""Most characters of an error message to keep: one line of a log."""

MAX_PARSED_BYTES = 65_536
"""Largest error body to parse. A larger one is no error object of an engine."""

_NAME = re.compile(r"[A-Za-z][A-Za-z_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed run of a request.

    Attributes:
        kind: Status, and the engine's error type and code if they are names:
            `500 InternalServerError`.
        may_be_own: True if the request itself may be the cause, and the engine may be well.
        message: Beginning of the error message; empty if it may quote the request.
    """

    kind: str
    may_be_own: bool
    message: str


def failure_of_answer(response: Response) -> Failure | None:
    """Return the failure that an answer shows; None for a success, or if the worker wrote the answer.

    A 401 is not the request's own: a request carries no login, so `VLLM_API_KEY` is wrong. A 501 is:
    the request asks for what this engine does not have. The message of a failure that may be the
    request's own is left out, because validation errors quote the prompt.
    """
    if response.status < HTTPStatus.BAD_REQUEST or response.is_refusal:
        return None
    error = _error_in(response.body)
    words = [str(response.status), *filter(None, map(_name, _type_and_code(error)))]
    is_client_error = response.status < HTTPStatus.INTERNAL_SERVER_ERROR
    may_be_own = response.status == HTTPStatus.NOT_IMPLEMENTED or (
        is_client_error and response.status != HTTPStatus.UNAUTHORIZED
    )
    message = "" if may_be_own else _one_line(error.get("message", ""))
    return Failure(" ".join(words), may_be_own=may_be_own, message=message)


def failure_of_error(code: str, error: Exception) -> Failure:
    """Return the failure for an exception of the engine's client or of the worker.

    Args:
        code: The code in the request's nack, such as `worker_error`.
        error: The exception.
    """
    kind = f"{code} {type(error).__name__}"
    return Failure(kind, may_be_own=False, message=_one_line(error))


def _error_in(body: bytes) -> dict[str, Any]:
    """Return the error object of OpenAI's format, or of vLLM's older one without `error`."""
    try:
        fields = orjson.loads(body) if len(body) <= MAX_PARSED_BYTES else None
    except ValueError:
        fields = None
    fields = mapping(fields)
    return dict(mapping(fields.get("error", fields)))


def _type_and_code(error: dict[str, Any]) -> tuple[Any, Any]:
    return error.get("type"), error.get("code")


def _one_line(message: Any) -> str:
    return one_line(str(message))[:MAX_MESSAGE_CHARS]


def _name(value: Any) -> str:
    return value if isinstance(value, str) and _NAME.fullmatch(value) else ""
