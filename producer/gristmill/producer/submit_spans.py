"""The span `submit` of each request that a producer submits, and its context in the request's facts."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from gristmill.shared.request import Request
from gristmill.shared.trace_context import context_of, trace_id_of, tracer, with_context

if TYPE_CHECKING:
    from opentelemetry.trace import Link, Span, Tracer


@contextmanager
def submit_spans(
    requests: Sequence[Request], queue: str, linked_to: Mapping[str, str] | None = None
) -> Iterator[Sequence[Request]]:
    """Record a span for each request while the block submits them; yield the requests with its context.

    A request whose new trace the sampler leaves out stays as it is: it costs Redis nothing, and no worker records it. A
    block that raises leaves no trace that began in it.

    Args:
        requests: The requests. One with a context in its facts gets a child of that span.
        queue: Name of the queue.
        linked_to: Headers of the span that asked for many requests, such as the creation of a batch. Each span then
            begins a trace, with a link to that span if there is one. None makes each a child of the current span, or
            the beginning of a trace.
    """
    found = tracer()
    if found is None:
        yield requests
        return
    spans = [_start(found, request, queue, linked_to) for request in requests]
    try:
        yield [_with_span(*pair) for pair in zip(requests, spans, strict=True)]
    except Exception as error:
        _fail([each.span for each in spans if each.continues], error)
        raise
    for each in spans:
        each.span.end()


class _Submit(NamedTuple):
    """The span of a request, and whether it continues a trace."""

    span: "Span"
    continues: bool


def _start(
    tracer: "Tracer", request: Request, queue: str, linked_to: Mapping[str, str] | None
) -> _Submit:
    from opentelemetry.context import Context
    from opentelemetry.trace import SpanKind, get_current_span

    attributes = {
        "gristmill.request.id": request.id,
        "gristmill.queue": queue,
        "gristmill.tenant": request.tenant,
        "gristmill.priority": request.priority,
    }
    if request.batch:
        attributes["gristmill.batch"] = request.batch
    context = None if linked_to is None else Context()
    if trace_id_of(request.facts):
        context = context_of(request.facts)
    continues = get_current_span(context).get_span_context().is_valid
    links = _links(linked_to)
    return _Submit(
        tracer.start_span("submit", context, SpanKind.PRODUCER, attributes, links), continues
    )


def _links(headers: Mapping[str, str] | None) -> "Sequence[Link]":
    from opentelemetry.trace import Link, get_current_span

    if not headers or not trace_id_of(headers):
        return ()
    return (Link(get_current_span(context_of(headers)).get_span_context()),)


def _with_span(request: Request, submit: _Submit) -> Request:
    if submit.continues or submit.span.get_span_context().trace_flags.sampled:
        return replace(request, facts=with_context(request.facts, submit.span))
    return request


def _fail(spans: "Sequence[Span]", error: Exception) -> None:
    from opentelemetry.trace import Status, StatusCode

    for span in spans:
        span.record_exception(error)
        span.set_status(Status(StatusCode.ERROR))
        span.end()
