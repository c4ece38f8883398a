"""Around every call: its id, its one canonical log line, its metrics, and an answer to what nobody expected.

Bodies, keys and query strings are never logged.
"""

import re
import time
from dataclasses import dataclass, field
from typing import Any

import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from ulid import ULID

from gristmill.producer.gateway import metrics
from gristmill.producer.gateway.errors import ApiError, api_error

log = structlog.get_logger()

QUIET = ("/healthz", "/readyz", "/metrics")
"""Asked every few seconds; no news."""

MAX_PATH_CHARS = 200
MAX_SMALL_BODY_BYTES = 2**20
STREAMED = ("/v1/files", "/v1/requests")
"""Routes that read their bodies themselves and bound them."""

CLIENT_LEFT = 499  # nginx's status for it; nobody sees it but the log

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/@=+-]{1,128}")


@dataclass
class Call:
    """What is known of one HTTP call; `request.state.call` while it runs.

    Attributes:
        request_id: The caller's X-Request-Id, or one of ours.
        tenant: Who calls, once he is known.
        facts: What a route adds to the log line.
    """

    request_id: str
    tenant: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    started_s: float = field(default_factory=time.monotonic)
    status: int = 0
    num_received: int = 0
    num_sent: int = 0


class Access:
    """ASGI middleware; the outermost of ours."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one call."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        call = Call(_request_id(scope))
        scope.setdefault("state", {})["call"] = call

        async def counted_receive() -> Message:
            message = await receive()
            call.num_received += len(message.get("body", b""))
            return message

        async def counted_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                call.status = message["status"]
                message["headers"] = [
                    *message["headers"],
                    (b"x-request-id", call.request_id.encode()),
                ]
            call.num_sent += len(message.get("body", b""))
            await send(message)

        metrics.open_calls.inc()
        try:
            await self._answer(call, scope, counted_receive, counted_send)
        finally:
            metrics.open_calls.dec()
            _report(call, scope)

    async def _answer(self, call: Call, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if (refusal := _body_refusal(scope)) is not None:
                await refusal.response()(scope, receive, send)
            else:
                await self._app(scope, receive, send)
        except ClientDisconnect:
            call.status = CLIENT_LEFT
        except Exception as error:
            log.exception("call.failed", request_id=call.request_id)
            if (
                call.status
            ):  # the answer has begun: only a cut connection tells that it is not whole
                raise
            await api_error(error).response()(scope, receive, send)


def _body_refusal(scope: Scope) -> ApiError | None:
    """Bound the bodies that the framework reads whole before any route sees them."""
    request = Request(scope)
    length = request.headers.get("content-length")
    if scope["path"] in STREAMED:
        return None
    if length is not None and int(length) > MAX_SMALL_BODY_BYTES:
        return ApiError(413, f"the body has {length} bytes; the limit is {MAX_SMALL_BODY_BYTES:,}")
    if length is None and "transfer-encoding" in request.headers:
        return ApiError(411, "send the length of the body (Content-Length)", code="length_required")
    return None


def _request_id(scope: Scope) -> str:
    given = Request(scope).headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else f"req-{ULID()}"


def _report(call: Call, scope: Scope) -> None:
    route = getattr(scope.get("route"), "path", "none")
    duration_s = time.monotonic() - call.started_s
    metrics.calls.labels(scope["method"], route, call.status).inc()
    metrics.call_seconds.labels(route).observe(duration_s)
    metrics.received_bytes.inc(call.num_received)
    metrics.sent_bytes.inc(call.num_sent)
    if scope["path"] in QUIET:
        return
    log.info(
        "call.answered",
        request_id=call.request_id,
        tenant=call.tenant or None,
        method=scope["method"],
        path=scope["path"][:MAX_PATH_CHARS],
        route=route,
        status=call.status,
        duration_s=round(duration_s, 4),
        received_bytes=call.num_received,
        sent_bytes=call.num_sent,
        **call.facts,
    )
