"""Errors of HTTP calls, in the form of OpenAI's API.

The form is `{"error": {"message", "type", "param", "code"}}`. This module alone decides which error
has which HTTP status.
"""

from collections.abc import Mapping, Sequence
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
    BudgetUsedUp,
    GristmillError,
    IdConflict,
    InvalidRequest,
    LimitReached,
    NotFound,
    NotReplicated,
    NotServed,
    QueueFull,
    ResultExpired,
    StorageQuotaReached,
    WrongFormat,
)
from gristmill.shared.redis_trouble import remedy, trouble_in_short

log = structlog.get_logger()

RETRY_AFTER_S = 5
"""Seconds in Retry-After when the queue is full, a limit is reached, or Redis or the storage does
not answer."""

NO_RETRY = {"x-should-retry": "false"}
"""Header by which OpenAI's clients do not repeat a call."""

_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}  # fmt: skip
_PARAMS = {"model_not_found": "model", "endpoint_not_served": "endpoint", "priority_not_allowed": "priority"}  # fmt: skip
_STATUS_OF_CODE = {"file_too_large": 413, "priority_not_allowed": 403}
"""Codes of `InvalidRequest` with a status other than 400."""

_NOT_SERVED = ("model_not_found", "endpoint_not_served")
"""Codes of a 404 that OpenAI calls an invalid request."""

_CODES = {400: "invalid_request", 401: "invalid_api_key", 404: "not_found", 405: "method_not_allowed", 413: "too_large"}  # fmt: skip


class ErrorBody(BaseModel):
    """The fields of an error. `code` is a number in an error of the engine."""

    message: str
    type: str
    param: str | None = None
    code: str | int | None = None


class ErrorAnswer(BaseModel):
    """The body of every answer other than 2xx."""

    error: ErrorBody


RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer} for status in (400, 401, 403, 404, 405, 408, 409, 413, 429, 503)
}
"""Errors of every route, on the OpenAPI page."""


@dataclass
class ApiError(Exception):
    """An error of an HTTP call.

    Attributes:
        status: HTTP status.
        message: The error, its value, the limit and the remedy.
        param: The field or header at fault, if any.
        code: Name of the error, for programs.
        headers: HTTP headers of the answer.
    """

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def response(self) -> JSONResponse:
        """Return the HTTP answer."""
        default = "server_error" if self.status >= 500 else "invalid_request_error"
        body = ErrorBody(
            message=self.message,
            type=default if self.code in _NOT_SERVED else _TYPES.get(self.status, default),
            param=self.param or _PARAMS.get(self.code or ""),
            code=self.code or _CODES.get(self.status),
        )
        return JSONResponse({"error": body.model_dump()}, self.status, dict(self.headers))


def too_large(what: str, limit: int, setting: str = "") -> ApiError:
    """Return the error for a body over its limit; `setting` is the operator's, if the limit has one."""
    remedy = f"split it, or ask the operator to raise {setting}" if setting else "shorten it"
    return ApiError(413, f"{what} has more than {limit:,} bytes, the limit; {remedy}")


_STATUS: Sequence[tuple[type[Exception], int, str]] = (
    (IdConflict, 409, "id_conflict"),
    (NotServed, 404, ""),
    (InvalidRequest, 400, ""),
    (NotFound, 404, ""),
    (ResultExpired, 404, ""),
    (StorageQuotaReached, 429, "insufficient_quota"),
    (BudgetUsedUp, 429, "insufficient_quota"),
    (LimitReached, 429, "limit_reached"),
    (QueueFull, 429, "queue_full"),
    (NotReplicated, 503, "not_replicated"),
    (WrongFormat, 503, "wrong_format"),
    (RedisError, 503, "redis_away"),
    (ConnectionError, 503, "redis_away"),
    (OSError, 503, "storage_failed"),
)
"""Class of an error, its HTTP status and its code. The first row that fits decides."""

WRONG_FORMAT = "another version of Gristmill wrote the queue or its tenants; the gateway's log and /readyz tell the operator what to do"

STORAGE_FAILED = "the storage of files failed; call again later"

FAILED = "the gateway failed; its log has the reason under the X-Request-Id of this answer"


def api_error(error: Exception) -> ApiError:
    """Return the HTTP error for an exception of Gristmill, Redis, FastAPI or Starlette."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestValidationError):
        return _invalid(error)
    if isinstance(error, HTTPException):
        return ApiError(error.status_code, str(error.detail), headers=error.headers or {})
    for kind, status, code in _STATUS:
        if isinstance(error, kind):
            return _known(error, status, code)
    return ApiError(500, FAILED)


def _known(error: Exception, status: int, code: str) -> ApiError:
    if isinstance(error, InvalidRequest):
        status = _STATUS_OF_CODE.get(error.code, status)
    message = _message(error, code)
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status in {429, 503} else {}
    if isinstance(error, (StorageQuotaReached, BudgetUsedUp)):
        headers = NO_RETRY
    return ApiError(status, message, code=code or getattr(error, "code", None), headers=headers)


def _message(error: Exception, code: str) -> str:
    """Return what the caller may read: an error of Redis or the storage may name internal machines."""
    if code == "redis_away":
        return f"the queue's Redis {trouble_in_short(error)}; nothing is lost, call again later"
    if code == "storage_failed":
        return STORAGE_FAILED
    return WRONG_FORMAT if code == "wrong_format" else str(error)


def _invalid(error: RequestValidationError) -> ApiError:
    """Return an error that names the first wrong field, without its value."""
    first = error.errors()[0]
    where, *path = (str(step) for step in first["loc"])
    name = ".".join(path) or where
    return ApiError(400, f"{name}: {first['msg']}", param=name)


def install(app: FastAPI) -> None:
    """Make an application answer every error in OpenAI's form."""

    async def answer(request: Request, error: Exception) -> JSONResponse:
        found = api_error(error)
        if isinstance(error, RedisError | OSError | WrongFormat):
            what_to_do = {"remedy": remedy(error)} if isinstance(error, RedisError) else {}
            path = request.url.path[:200]
            log.warning("call.not_served", error=repr(error)[:500], **what_to_do, path=path)
        return found.response()

    for kind in (ApiError, GristmillError, RedisError, OSError, HTTPException, RequestValidationError):  # fmt: skip
        app.add_exception_handler(kind, answer)
