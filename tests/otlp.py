"""A true OTLP/HTTP receiver in this process, and the recording of traces for the length of a test."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import opentelemetry.trace
import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.util._once import Once

from gristmill.shared.tracing import Tracing, start_tracing

TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE_ID}-{SPAN_ID}-01"
"""The example of W3C Trace Context."""


@dataclass(frozen=True)
class ReceivedSpan:
    """A span, as OTLP has it."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    links: list[str]
    is_error: bool
    service: str


@dataclass
class Receiver:
    """What an OTLP endpoint got."""

    url: str = ""
    spans: list[ReceivedSpan] = field(default_factory=list)

    def named(self, name: str, trace_id: str = "") -> list[ReceivedSpan]:
        """Return the spans of a name, of one trace if given, by their start."""
        found = [each for each in self.spans if each.name == name and trace_id in each.trace_id]
        return sorted(found, key=lambda each: each.start_ns)

    async def receive(self, call: web.Request) -> web.Response:
        """Take an export."""
        body = await call.read()
        if call.headers.get("Content-Encoding") == "gzip" and body[:2] == b"\x1f\x8b":
            body = gzip.decompress(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            facts = _values(resource.resource.attributes)
            for scope in resource.scope_spans:
                self.spans += [_span(each, str(facts.get("service.name"))) for each in scope.spans]
        answer = ExportTraceServiceResponse().SerializeToString()
        return web.Response(body=answer, content_type="application/x-protobuf")


@asynccontextmanager
async def otlp_receiver() -> AsyncIterator[Receiver]:
    """Serve an OTLP/HTTP endpoint for the length of a block."""
    receiver = Receiver()
    app = web.Application(client_max_size=64 * 2**20)
    app.router.add_post("/v1/traces", receiver.receive)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield receiver
    finally:
        await runner.cleanup()


@asynccontextmanager
async def recording(
    url: str, patch: pytest.MonkeyPatch, count_lost: Any = None
) -> AsyncIterator[Tracing]:
    """Record the traces of this process for the length of a block, and send them at its end.

    OpenTelemetry sets its provider once in a process; its own tests undo that as this does.
    """
    patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    for name in ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"):
        patch.setenv(name, "")
    patch.setattr(opentelemetry.trace, "_TRACER_PROVIDER", None)
    patch.setattr(opentelemetry.trace, "_TRACER_PROVIDER_SET_ONCE", Once())
    tracing = start_tracing("test", count_lost or (lambda _: None))
    assert tracing is not None
    try:
        yield tracing
    finally:
        await asyncio.to_thread(tracing.stop)  # this loop serves the receiver


def _span(each: Any, service: str) -> ReceivedSpan:
    return ReceivedSpan(
        each.name,
        each.trace_id.hex(),
        each.span_id.hex(),
        each.parent_span_id.hex(),
        each.start_time_unix_nano,
        each.end_time_unix_nano,
        _values(each.attributes),
        [f"{link.trace_id.hex()}-{link.span_id.hex()}" for link in each.links],
        each.status.code == 2,
        service,
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {
        each.key: getattr(each.value, str(each.value.WhichOneof("value"))) for each in attributes
    }
