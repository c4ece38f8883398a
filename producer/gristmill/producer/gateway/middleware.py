"""The middleware around every HTTP call: id, log line, metrics, unexpected errors.

It never logs bodies, keys or query strings.
"""

import re
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import structlog
from prometheus_client import Counter, Gauge, Histogram
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from ulid import ULID

from gristmill.producer.gateway.call_spans import call_span, note_status
from gristmill.producer.gateway.http_errors import NO_RETRY, ApiError, api_error

log = structlog.get_logger()

QUIET = ("/healthz", "/readyz", "/metrics")
"""Paths that probes call every few seconds; these calls are not logged."""

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""Methods with a time series and a name in the log. Strangers invent others without end; all of them are `OTHER`."""

OTHER = "other"
MAX_PATH_CHARS = 200
CLIENT_LEFT = 499
"""Status in the log of a call whose client closed the connection (nginx's number)."""

DURATION_BUCKETS_S = (0.002, 0.005, 0.02, 0.1, 0.5, 1, 5, 30, 60, 300, 1800)

_calls = Counter("gristmill_gateway_calls", "HTTP calls", ["method", "route", "status"])
_call_seconds = Histogram(
    "gristmill_gateway_call_seconds", "Seconds from a call to the end of its answer", ["route"],
    buckets=DURATION_BUCKETS_S,
)  # fmt: skip
_open_calls = Gauge("gristmill_gateway_open_calls", "Calls that are being answered")
_received_bytes = Counter("gristmill_gateway_received_bytes", "Bytes of received bodies")
_sent_bytes = Counter("gristmill_gateway_sent_bytes", "Bytes of sent bodies")

TWO_LENGTHS = ApiError(
    400, "the call has both Content-Length and Transfer-Encoding; send one of them", headers={"Connection": "close"}
)  # fmt: skip
"""Answer to a call whose body has two lengths. The limits read the first, and the body has the second; a proxy may
also see another end of the call (request smuggling, RFC 9112, section 6.1)."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/@=+-]{1,128}")


@dataclass
class HttpCall:
    """The facts of one HTTP call. A route finds them in `request.state.call`.

    Attributes:
        request_id: The caller's X-Request-Id, or a new id.
        tenant: Name of the calling tenant; empty before authentication.
        facts: Fields that the route adds to the log line.
        started_s: Monotonic clock at the start of the call.
        status: HTTP status of the answer; 0 before the answer begins.
        num_received: Bytes of the call's body.
        num_sent: Bytes of the answer's body.
    """

    request_id: str
    tenant: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    started_s: float = field(default_factory=time.monotonic)
    status: int = 0
    num_received: int = 0
    num_sent: int = 0


class CallMiddleware:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one call."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        call = HttpCall(_request_id(scope))
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

        _open_calls.inc()
        with nullcontext() if scope["path"] in QUIET else call_span(scope, _method(scope)) as span:
            try:
                await self._answer(call, scope, counted_receive, counted_send)
            finally:
                _open_calls.dec()
                note_status(span, call.status)
                _report(call, scope)

    async def _answer(self, call: HttpCall, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if _has_two_lengths(scope):
                await TWO_LENGTHS.response()(scope, receive, send)
                return
            await self._app(scope, receive, send)
        except ClientDisconnect:
            call.status = CLIENT_LEFT
        except Exception as error:
            log.exception("call.failed", request_id=call.request_id)
            # Once the answer has begun, only a cut connection shows that it is incomplete.
            if call.status:
                raise
            answer = api_error(error)
            if scope["method"] == "POST":  # it may have created something before it failed
                answer.headers = NO_RETRY
            await answer.response()(scope, receive, send)


def _has_two_lengths(scope: Scope) -> bool:
    names = {name for name, _ in scope["headers"]}
    return b"content-length" in names and b"transfer-encoding" in names


def _request_id(scope: Scope) -> str:
    given = Request(scope).headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else f"req-{ULID()}"


def _method(scope: Scope) -> str:
    return scope["method"] if scope["method"] in METHODS else OTHER


def _report(call: HttpCall, scope: Scope) -> None:
    route = getattr(scope.get("route"), "path", "none")
    duration_s = time.monotonic() - call.started_s
    method = _method(scope)
    _calls.labels(method, route, call.status).inc()
    _call_seconds.labels(route).observe(duration_s)
    _received_bytes.inc(call.num_received)
    _sent_bytes.inc(call.num_sent)
    if scope["path"] in QUIET:
        return
    log.info(
        "call.answered",
        request_id=call.request_id,
        tenant=call.tenant or None,
        method=method,
        path=scope["path"][:MAX_PATH_CHARS],
        route=route,
        status=call.status,
        duration_s=round(duration_s, 4),
        received_bytes=call.num_received,
        sent_bytes=call.num_sent,
        **call.facts,
    )
