"""Define every Prometheus series of a worker; `/metrics` serves them with vLLM's own `vllm:*`."""

from prometheus_client import REGISTRY, Counter, Gauge, Histogram

from gristmill.shared.queue_series import QueueSeries

SECONDS = (0.005, 0.02, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200, 43200)

claims = Counter("gristmill_claims", "Batches that closed, by reason", ["closed_by"])
claimed = Counter("gristmill_claimed_requests", "Requests that were claimed")
finished = Counter("gristmill_finished_requests", "Requests that ended here", ["status"])
retried = Counter("gristmill_retried_requests", "Requests that were nacked")
released = Counter("gristmill_released_requests", "Requests that were released")
aborted = Counter("gristmill_aborted_requests", "Requests aborted because they ended elsewhere")
cut = Counter("gristmill_cut_requests", "Requests that a limit ended", ["limit"])
engine_deaths = Counter("gristmill_engine_deaths", "Deaths of the engine and failed restarts")
claims_paused = Gauge(
    "gristmill_claims_paused", "1 while Redis has no memory for more results", ["queue"]
)
braked = Gauge(
    "gristmill_worker_braked",
    "1 while the engine fails everything, so that single requests are tried",
)
lost_spans = Counter("gristmill_lost_spans", "Spans of traces that no OTLP endpoint got")
leases_lost = Counter("gristmill_leases_lost", "Times this worker lost its lease")
prompt_tokens = Counter("gristmill_prompt_tokens", "Prompt tokens of finished requests")
output_tokens = Counter("gristmill_output_tokens", "Output tokens of finished requests")
queue_wait = Histogram(
    "gristmill_queue_wait_seconds", "Seconds from submit to claim", buckets=SECONDS
)
ttft = Histogram(
    "gristmill_ttft_seconds",
    "Seconds from arrival at the engine to the first token",
    buckets=SECONDS,
)
e2e = Histogram(
    "gristmill_e2e_seconds", "Seconds from submit to the engine's answer", buckets=SECONDS
)
running = Gauge("gristmill_running_requests", "Requests in the engine")
settling = Gauge(
    "gristmill_settling_requests", "Finished requests whose results are not written yet"
)
max_in_flight = Gauge("gristmill_max_in_flight", "Most requests that the engine may hold")
gulp = Gauge(
    "gristmill_gulp_places",
    "Free places that a full engine waits for before a claim; 1 for a shallow queue, 0 without gulps",
)
step = Histogram(
    "gristmill_step_seconds",
    "Seconds of one step of the engine in this process",
    buckets=(0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 5),
)
admission_budget_tokens = Gauge(
    "gristmill_admission_budget_tokens",
    "KV cache tokens that may be promised to requests; 0 if unknown",
)
committed_tokens = Gauge(
    "gristmill_committed_tokens",
    "KV cache tokens that the requests in the engine are expected to need",
)
queues = QueueSeries()
REGISTRY.register(queues)
engine = Gauge(
    "gristmill_engine_info",
    "Facts about the engine, as labels; always 1",
    ["transport", "model", "device", "dtype", "vllm_version"],
)
