"""Send the spans of this process to an OTLP endpoint; `tracing.py` imports this module only if tracing is on.

OpenTelemetry's SDK does the work. This module counts lost spans and bounds the time that the last spans may take at the
end of the process. It keeps the exporter's warnings out of stderr; the last one stands in the log line `traces.lost`.
"""

import logging
import re
import threading
import time
from collections.abc import Callable, Sequence

import structlog
from opentelemetry import trace
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

log = structlog.get_logger()

FLUSH_S = 3.0
"""Most seconds that the end of a process waits for its last spans. Grace periods are much longer."""

NOTICE_S = 60.0
"""Seconds between two log lines about lost spans."""

VLLM_REQUEST = "llm_request"
"""Name of vLLM's span of a request. It makes one for each request, also for those without a trace."""

_USER = re.compile(r"[^\s/@]+@")
"""User and password in a URL, which gRPC's errors repeat."""

_COMPLAINING = ("opentelemetry.exporter", "opentelemetry.sdk._shared_internal")


def otlp_exporter(protocol: str) -> SpanExporter:
    """Return OpenTelemetry's exporter for `http/protobuf` or `grpc`; it reads `OTEL_EXPORTER_OTLP_*` itself."""
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as Grpc

        return Grpc()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as Http

    return Http()


class Recording:
    """The recording of spans from its creation to `stop`.

    Args:
        service: Name of the service, unless the environment has one.
        exporter: Sends the spans.
        endpoint: Public part of the endpoint's URL, for the log.
        count_lost: Called with the number of spans that no endpoint will get.
    """

    def __init__(
        self,
        service: str,
        exporter: SpanExporter,
        endpoint: str,
        count_lost: Callable[[int], object],
    ) -> None:
        self._losses = _Losses(endpoint, count_lost)
        self._processor = _Processor(exporter, self._losses)
        resource = Resource.create({SERVICE_NAME: service}).merge(OTELResourceDetector().detect())
        # Without shutdown_on_exit, because that would wait for 30 s.
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(self._processor)
        trace.set_tracer_provider(provider)
        # vLLM tries to set a second provider, and OpenTelemetry warns that the first one stays.
        logging.getLogger("opentelemetry.trace").setLevel(logging.ERROR)

    def stop(self) -> None:
        """Send the last spans, for `FLUSH_S` at most; the others are lost and counted."""
        sending = threading.Thread(target=self._processor.shutdown, name="traces-end", daemon=True)
        sending.start()
        sending.join(FLUSH_S)
        self._losses.end()


class _Losses(logging.Handler):
    """Counts the spans that no endpoint gets, and logs that once in `NOTICE_S`."""

    def __init__(self, endpoint: str, count_lost: Callable[[int], object]) -> None:
        super().__init__(logging.WARNING)
        self._endpoint, self._count_lost = endpoint, count_lost
        self._counting = threading.Lock()  # spans end and are sent in different threads
        self._num_ended = self._num_tried = self._num_evicted = self._num_unlogged = 0
        self._logged_at = -NOTICE_S
        self._complaint = ""
        for name in _COMPLAINING:
            logger = logging.getLogger(name)
            logger.addHandler(self)
            logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        """Keep what the exporter complains about."""
        self._complaint = _USER.sub("", record.getMessage())[:300]

    def ended(self, max_queue_size: int) -> None:
        """Count a span that has entered the queue, and the one that a full queue has given up for it."""
        with self._counting:
            self._num_ended += 1
            # Exact after each entry into a full queue, which is the only time when a span is given up.
            num_evicted = self._num_ended - self._num_tried - max_queue_size
            if num_evicted > self._num_evicted:
                self._lose(num_evicted - self._num_evicted)
                self._num_evicted = num_evicted

    def tried(self, num_spans: int, *, is_sent: bool) -> None:
        """Count the spans that the exporter has sent, or has given up."""
        with self._counting:
            self._num_tried += num_spans
            if not is_sent:
                self._lose(num_spans)
            if self._num_unlogged and time.monotonic() >= self._logged_at + NOTICE_S:
                self._log()

    def end(self) -> None:
        """Count the spans that are still in the queue as lost, and log what is not logged yet."""
        with self._counting:
            self._lose(self._num_ended - self._num_tried - self._num_evicted)
            self._num_tried = self._num_ended - self._num_evicted
            if self._num_unlogged:
                self._log()

    def _lose(self, num_spans: int) -> None:
        self._num_unlogged += num_spans
        self._count_lost(num_spans)

    def _log(self) -> None:
        log.warning(
            "traces.lost",
            num_spans=self._num_unlogged,
            endpoint=self._endpoint,
            error=self._complaint,
        )
        self._num_unlogged, self._logged_at = 0, time.monotonic()


class _Processor(BatchSpanProcessor):
    """OpenTelemetry's queue of spans; it reports to the losses, and drops vLLM's requests without a trace."""

    def __init__(self, exporter: SpanExporter, losses: _Losses) -> None:
        self._losses, self._max_queue_size = losses, self._default_max_queue_size()  # type: ignore[no-untyped-call]
        super().__init__(_Exporter(exporter, losses), self._max_queue_size)

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a span that has ended, if it is sampled."""
        if span.parent is None and span.name == VLLM_REQUEST:
            return
        super().on_end(span)
        if span.context and span.context.trace_flags.sampled:
            self._losses.ended(self._max_queue_size)


class _Exporter(SpanExporter):
    """An exporter that reports to the losses."""

    def __init__(self, exporter: SpanExporter, losses: _Losses) -> None:
        self._exporter, self._losses = exporter, losses

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans; never raise."""
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            self._losses.tried(len(spans), is_sent=result is SpanExportResult.SUCCESS)
        return result

    def shutdown(self) -> None:
        """End the exporter, also one that waits to try again."""
        self._exporter.shutdown()
