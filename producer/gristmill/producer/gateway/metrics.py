"""Every series of the gateway, in one place."""

from prometheus_client import Counter, Gauge, Histogram

SECONDS = (0.002, 0.005, 0.02, 0.1, 0.5, 1, 5, 30, 60, 300, 1800)

calls = Counter("gristmill_gateway_calls", "HTTP calls", ["method", "route", "status"])
call_seconds = Histogram(
    "gristmill_gateway_call_seconds", "From a call to the end of its answer", ["route"], buckets=SECONDS
)  # fmt: skip
open_calls = Gauge("gristmill_gateway_open_calls", "Calls that are being answered")
received_bytes = Counter("gristmill_gateway_received_bytes", "Bytes of bodies that came")
sent_bytes = Counter("gristmill_gateway_sent_bytes", "Bytes of bodies that went")
submitted = Counter("gristmill_gateway_submitted_requests", "Requests that were queued")
refused = Counter("gristmill_gateway_refused_calls", "Calls over a tenant's limit", ["limit"])
