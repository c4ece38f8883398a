"""What went wrong, in the form of OpenAI's API: `{"error": {"message", "type", "param", "code"}}`.

The one place that knows which error has which HTTP status.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from redis.exceptions import RedisError
from starlette.exceptions import HTTPException

from gristmill.shared.errors import (
    GristmillError,
    IdConflict,
    InvalidRequest,
    LimitReached,
    NotFound,
    NotReplicated,
    QueueFull,
    ResultExpired,
)

log = structlog.get_logger()

RETRY_AFTER_S = 5
"""When to come back after a full queue, a reached limit or an absent Redis."""

_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}  # fmt: skip
_CODES = {400: "invalid_request", 401: "invalid_api_key", 404: "not_found", 405: "method_not_allowed", 413: "too_large"}  # fmt: skip


class ErrorBody(BaseModel):
    """The inside of an error."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorAnswer(BaseModel):
    """What every answer but 2xx carries."""

    error: ErrorBody


RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer}
    for status in (400, 401, 403, 404, 405, 409, 411, 413, 429, 503)
}
"""For the OpenAPI page: what any route may answer."""


@dataclass
class ApiError(Exception):
    """An error with the status under which the caller gets it.

    Attributes:
        status: Of HTTP.
        message: What, which value, the limit and the remedy.
        param: The field or header at fault, if one is.
        code: For programs.
        headers: Sent along.
    """

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def response(self) -> JSONResponse:
        """Return the answer."""
        default = "server_error" if self.status >= 500 else "invalid_request_error"
        body = ErrorBody(
            message=self.message,
            type=_TYPES.get(self.status, default),
            param=self.param,
            code=self.code or _CODES.get(self.status),
        )
        return JSONResponse({"error": body.model_dump()}, self.status, dict(self.headers))


def too_large(what: str, limit: int, setting: str) -> ApiError:
    """Return the error for a body over its limit."""
    return ApiError(413, f"{what} has more than {limit:,} bytes, the limit ({setting}); split it")


def api_error(error: Exception) -> ApiError:
    """Return the error under which a caller gets one of ours, of Redis or of the framework."""
    text, later = str(error), {"Retry-After": str(RETRY_AFTER_S)}
    match error:
        case ApiError():
            return error
        case IdConflict():
            return ApiError(409, text, code="id_conflict")
        case InvalidRequest():
            return ApiError(413 if error.code == "file_too_large" else 400, text, code=error.code)
        case NotFound() | ResultExpired():
            return ApiError(404, text)
        case LimitReached():
            return ApiError(429, text, code="limit_reached", headers=later)
        case QueueFull():
            return ApiError(429, text, code="queue_full", headers=later)
        case NotReplicated():
            return ApiError(503, text, code="not_replicated", headers=later)
        case RedisError() | OSError():
            message = "the queue's Redis does not answer; nothing is lost, call again later"
            return ApiError(503, message, code="redis_away", headers=later)
        case HTTPException():
            return ApiError(error.status_code, str(error.detail), headers=error.headers or {})
        case RequestValidationError():
            return _invalid(error)
    return ApiError(500, "the gateway failed; its log says why, under this X-Request-Id")


def _invalid(error: RequestValidationError) -> ApiError:
    """Name the first field that is wrong; its value is not repeated."""
    first = error.errors()[0]
    where, *path = (str(step) for step in first["loc"])
    name = ".".join(path) or where
    return ApiError(400, f"{name}: {first['msg']}", param=name)


def install(app: FastAPI) -> None:
    """Have every error answered in this form."""

    async def answer(request: Request, error: Exception) -> JSONResponse:
        found = api_error(error)
        if isinstance(error, RedisError | OSError):
            log.warning("redis.missed", error=repr(error)[:500], path=request.url.path[:200])
        return found.response()

    for kind in (ApiError, GristmillError, RedisError, OSError, HTTPException, RequestValidationError):  # fmt: skip
        app.add_exception_handler(kind, answer)
