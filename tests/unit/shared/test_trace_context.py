"""The trace of a request in its facts: what W3C calls malformed is no trace, and no error."""

import pytest
from otlp import PARENT, SPAN_ID, TRACE_ID

from gristmill.shared.errors import SettingsError
from gristmill.shared.facts import encode_facts
from gristmill.shared.trace_context import context_of, trace_id_of, with_context
from gristmill.shared.tracing import TRACES_ENDPOINT, is_on, otlp_variables

MALFORMED = [
    "",
    "garbage",
    f"ff-{TRACE_ID}-{SPAN_ID}-01",
    f"00-{'0' * 32}-{SPAN_ID}-01",
    f"00-{TRACE_ID}-{'0' * 16}-01",
    f"00-{TRACE_ID.upper()}-{SPAN_ID}-01",
    f"00-{TRACE_ID}-{SPAN_ID}",
    f"00-{TRACE_ID}-{SPAN_ID}-01-more",
    PARENT * 100,
]


def test_trace_id_is_that_of_the_traceparent() -> None:
    assert trace_id_of({"traceparent": PARENT}) == TRACE_ID
    assert trace_id_of({}) == ""


@pytest.mark.parametrize("value", MALFORMED)
def test_malformed_traceparent_is_no_trace(value: str) -> None:
    from opentelemetry.trace import get_current_span

    assert trace_id_of({"traceparent": value}) == ""
    assert not get_current_span(context_of({"traceparent": value})).get_span_context().is_valid


def test_tracestate_is_kept_as_far_as_a_fact_can_hold_it() -> None:
    from opentelemetry.trace import get_current_span

    members = ["a=1", "b=one|two", "c=~", *(f"vendor{i}={'x' * 90}" for i in range(20))]
    headers = {"traceparent": PARENT, "tracestate": ",".join(members)}
    facts = with_context({"stream": ""}, get_current_span(context_of(headers)))
    assert facts["traceparent"] == PARENT
    assert facts["tracestate"].startswith("a=1,vendor0=")
    assert len(facts["tracestate"]) <= 512
    assert len(encode_facts(facts)) <= 1024


def test_facts_without_room_stay_as_they_are() -> None:
    from opentelemetry.trace import get_current_span

    full = {"a": "x" * 500, "b": "x" * 500}
    assert with_context(full, get_current_span(context_of({"traceparent": PARENT}))) == full


def test_the_standard_variables_say_whether_and_where_traces_go() -> None:
    base = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318/"}
    assert not is_on({})
    assert not is_on(base | {"OTEL_SDK_DISABLED": "true"})
    assert not is_on(base | {"OTEL_TRACES_EXPORTER": "none"})
    assert is_on(base)
    assert is_on({"OTEL_TRACES_EXPORTER": "otlp"})
    assert otlp_variables(base)[TRACES_ENDPOINT] == "http://collector:4318/v1/traces"
    assert otlp_variables({})[TRACES_ENDPOINT] == "http://localhost:4318/v1/traces"
    grpc = {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    assert otlp_variables(grpc)[TRACES_ENDPOINT] == "http://localhost:4317"
    own = {TRACES_ENDPOINT: "http://traces:9/x"}
    assert otlp_variables(base | own)[TRACES_ENDPOINT] == "http://traces:9/x"
    with pytest.raises(SettingsError, match="OTEL_TRACES_EXPORTER is 'zipkin'; use otlp or none"):
        is_on({"OTEL_TRACES_EXPORTER": "zipkin"})
    with pytest.raises(SettingsError, match="OTEL_EXPORTER_OTLP_PROTOCOL is 'http/json'"):
        otlp_variables({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"})
