"""The spans of a claimed request: how long it waited, its run on the engine, and how the worker settled it.

They are children of the span `submit`, whose context is in the facts of the record (`trace_context.py`). A request
that is claimed again gets these spans for each claim, so retries and deaths show in one trace. A request without a
context gets no spans, because only producers begin traces.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gristmill.shared.records import Claimed
from gristmill.shared.trace_context import context_of, trace_id_of, tracer
from gristmill.worker.engine.interface import Response

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

MS = 1_000_000
"""Nanoseconds of a millisecond; OpenTelemetry counts in nanoseconds."""


def spans_of(claimed: Claimed, worker: str, queue: str) -> "RequestSpans | None":
    """Return the recorder of the spans of a claim; None if the process records none or the request has no trace."""
    if not trace_id_of(claimed.record.facts):
        return None
    found = tracer()
    return RequestSpans(found, claimed, worker, queue) if found else None


class RequestSpans:
    """The spans of one claim of a request.

    Args:
        tracer: The tracer of this process.
        claimed: The claimed request.
        worker: The worker incarnation that claimed it.
        queue: Name of the queue.
    """

    __slots__ = ("_attributes", "_context", "_settling", "_tracer")

    def __init__(self, tracer: "Tracer", claimed: Claimed, worker: str, queue: str) -> None:
        self._tracer = tracer
        self._context: Context = context_of(claimed.record.facts)
        self._settling: Span | None = None
        record = claimed.record
        self._attributes: dict[str, Any] = {
            "gristmill.request.id": claimed.id,
            "gristmill.queue": queue,
            "gristmill.worker": worker,
            "gristmill.tenant": record.tenant,
            "gristmill.priority": record.priority,
            "gristmill.attempt": claimed.attempt,
            "gristmill.delivery": claimed.delivery,
            "gristmill.crashes": claimed.crashes,
        }
        if record.batch:
            self._attributes["gristmill.batch"] = record.batch

    def waited(self, enqueued_ms: int, claimed_ms: int) -> None:
        """Record the time in the queue.

        Args:
            enqueued_ms: Time of the submit, in Redis's milliseconds since 1970.
            claimed_ms: Time of the claim, in the same unit.
        """
        span = self._start("wait in queue", start_time=enqueued_ms * MS)
        span.end(max(enqueued_ms, claimed_ms) * MS)

    @contextmanager
    def engine(self) -> "Iterator[Span]":
        """Record the run on the engine; the span is the current one within the block."""
        from opentelemetry.trace import use_span

        span = self._start("engine")
        try:
            # A cancelled run is no error: the request ended elsewhere, or the worker stops.
            with use_span(span, record_exception=True, set_status_on_exception=True):
                yield span
        finally:
            span.end()

    def settling(self, verb: str, **facts: str | int) -> None:
        """Begin to record a settlement.

        Args:
            verb: The operation of the queue: ack, nack or release.
            **facts: Attributes of the span; their names get the prefix `gristmill.`.
        """
        self._settling = self._start(verb)
        _set(self._settling, facts)

    def settled(self, **facts: str | int) -> None:
        """End the record of the settlement, if one has begun."""
        if self._settling:
            _set(self._settling, facts)
            self._settling.end()
            self._settling = None

    def _start(self, name: str, start_time: int | None = None) -> "Span":
        from opentelemetry.trace import SpanKind

        return self._tracer.start_span(
            name,
            self._context,
            SpanKind.CONSUMER,
            self._attributes,
            start_time=start_time or time.time_ns(),
        )


def note_response(span: "Span", response: Response) -> None:
    """Give the span of the engine the facts of its answer, without the answer.

    The names are OpenTelemetry's, where it has some
    (https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/).
    """
    from opentelemetry.trace import Status, StatusCode

    facts: dict[str, Any] = {
        "http.response.status_code": response.status,
        "gen_ai.request.model": response.model,
        "gen_ai.usage.input_tokens": response.prompt_tokens,
        "gen_ai.usage.output_tokens": response.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": response.cached_tokens,
    }
    if response.finish_reason:
        facts["gen_ai.response.finish_reasons"] = (response.finish_reason,)
    if response.ttft_s is not None:
        facts["gristmill.ttft_s"] = response.ttft_s
    span.set_attributes(facts)
    if response.status >= 500:
        span.set_status(Status(StatusCode.ERROR))


def _set(span: "Span", facts: Mapping[str, str | int]) -> None:
    span.set_attributes({f"gristmill.{name}": value for name, value in facts.items()})
