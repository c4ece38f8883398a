"""The span of an HTTP call, a child of the caller's span if the call names one in a `traceparent` header."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog
from starlette.types import Scope

from gristmill.shared.trace_context import TRACEPARENT, TRACESTATE, context_of, tracer

if TYPE_CHECKING:
    from opentelemetry.trace import Span


@contextmanager
def call_span(scope: Scope, method: str) -> Iterator["Span | None"]:
    """Record a call while the block answers it; log lines within have the trace id.

    Args:
        scope: The call.
        method: Its method; the name of the span gets the route, once the application has found it.

    Yields:
        The span, for its status; None if this process records no traces.
    """
    found = tracer()
    if found is None:
        yield None
        return
    from opentelemetry.trace import SpanKind

    with found.start_as_current_span(
        method, context_of(_trace_headers(scope)), SpanKind.SERVER, {"http.request.method": method}
    ) as span:
        trace_id = f"{span.get_span_context().trace_id:032x}"
        with structlog.contextvars.bound_contextvars(trace_id=trace_id):
            yield span
        if route := getattr(scope.get("route"), "path", ""):
            span.update_name(f"{method} {route}")
            span.set_attribute("http.route", route)


def note_status(span: "Span | None", status: int) -> None:
    """Give the span of a call the status of its answer."""
    if span is None:
        return
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute("http.response.status_code", status)
    if status >= 500:
        span.set_status(Status(StatusCode.ERROR))


def _trace_headers(scope: Scope) -> dict[str, str]:
    """Return `traceparent` and `tracestate` of a call. Two `traceparent` headers count as none, as W3C says."""
    values: dict[bytes, list[str]] = {}
    for name, value in scope["headers"]:
        values.setdefault(name, []).append(value.decode("latin-1"))
    parents = values.get(TRACEPARENT.encode(), [])
    if len(parents) != 1:
        return {}
    return {TRACEPARENT: parents[0], TRACESTATE: ",".join(values.get(TRACESTATE.encode(), ()))}
