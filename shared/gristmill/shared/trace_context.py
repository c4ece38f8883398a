"""Write and read the trace of a request: in its facts and in HTTP headers. No Redis here.

A request has the context of the span that submitted it, as W3C Trace Context writes it
(https://www.w3.org/TR/trace-context/). This module imports OpenTelemetry only if the process has a tracer already:
an entry point started it (`tracing.py`), or the program around a client did.
"""

import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gristmill.shared.errors import InvalidRequest
from gristmill.shared.facts import encode_facts

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
"""Names of the facts, and of the headers of HTTP."""

SCOPE = "gristmill"
"""Name of the instrumentation scope of all spans."""

MAX_TRACESTATE_CHARS = 512
"""Most characters of a kept `tracestate`. W3C asks for at least 512, and a fact may have no more."""

_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)
_MEMBER = re.compile(r"[A-Za-z0-9._:/@+;-]+=[A-Za-z0-9._:/@+;-]+")


def tracer() -> "Tracer | None":
    """Return the tracer of this process, or None if nothing in it records spans."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    provider = api.get_tracer_provider()
    if isinstance(provider, api.ProxyTracerProvider):  # the program has set no provider
        return None
    found: Tracer = provider.get_tracer(SCOPE)
    return found


def trace_id_of(carrier: Mapping[str, str]) -> str:
    """Return the trace id in facts or headers, 32 hex digits; "" without a valid `traceparent`."""
    value = carrier.get(TRACEPARENT)
    found = _TRACEPARENT.fullmatch(value) if value else None
    return found[1] if found else ""


def context_of(carrier: Mapping[str, str]) -> "Context":
    """Return the context that facts or headers name; an empty one if their `traceparent` is malformed.

    Call it only in a process that has a tracer.
    """
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract(carrier, Context())


def trace_headers() -> dict[str, str]:
    """Return the context of the current span as headers; empty without a span."""
    api = sys.modules.get("opentelemetry.trace")
    return headers_of(api.get_current_span()) if api else {}


def headers_of(span: "Span") -> dict[str, str]:
    """Return the context of a span as headers: `traceparent`, and `tracestate` if there is one."""
    context = span.get_span_context()
    if not context.is_valid:
        return {}
    from opentelemetry.trace import set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    headers: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(headers, set_span_in_context(span))
    return headers


def with_context(facts: Mapping[str, str], span: "Span") -> Mapping[str, str]:
    """Return the facts of a request with the context of the span that submits it.

    A member of `tracestate` that a fact cannot hold is left out, and so is the context if the facts have no room.
    """
    headers = headers_of(span)
    if TRACESTATE in headers:
        headers[TRACESTATE] = _kept_members(headers[TRACESTATE])
    both = {**facts, **{name: value for name, value in headers.items() if value}}
    try:
        encode_facts(both)
    except InvalidRequest:
        return facts
    return both


def _kept_members(tracestate: str) -> str:
    """Return the first members that fit into a fact, in their order."""
    kept = ""
    for member in tracestate.split(","):
        longer = f"{kept},{member}" if kept else member
        if _MEMBER.fullmatch(member) and len(longer) <= MAX_TRACESTATE_CHARS:
            kept = longer
    return kept
