"""Define every Prometheus series of a worker; `/metrics` serves them with vLLM's own `vllm:*`."""

from prometheus_client import Counter, Gauge, Histogram

SECONDS = (0.005, 0.02, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200, 43200)

claims = Counter("gristmill_claims", "Batches that were started", ["closed_by"])
claimed = Counter("gristmill_claimed_requests", "Requests that were claimed")
finished = Counter("gristmill_finished_requests", "Requests that ended here", ["status"])
retried = Counter("gristmill_retried_requests", "Requests that were given back for a retry")
released = Counter("gristmill_released_requests", "Requests that were handed back unfinished")
aborted = Counter("gristmill_aborted_requests", "Requests that were aborted while they ran")
cut = Counter("gristmill_cut_requests", "Requests that ran into a limit", ["limit"])
engine_deaths = Counter("gristmill_engine_deaths", "Times the engine died or did not start anew")
claims_paused = Gauge(
    "gristmill_claims_paused", "1 while Redis has no memory for more results", ["queue"]
)
leases_lost = Counter("gristmill_leases_lost", "Times this worker lost its lease")
prompt_tokens = Counter("gristmill_prompt_tokens", "Prompt tokens of finished requests")
output_tokens = Counter("gristmill_output_tokens", "Output tokens of finished requests")
queue_wait = Histogram("gristmill_queue_wait_seconds", "From submit to claim", buckets=SECONDS)
ttft = Histogram(
    "gristmill_ttft_seconds", "From the engine's arrival to the first token", buckets=SECONDS
)
e2e = Histogram("gristmill_e2e_seconds", "From submit to the engine's answer", buckets=SECONDS)
running = Gauge("gristmill_running_requests", "Requests in the engine")
settling = Gauge("gristmill_settling_requests", "Finished requests not yet written")
max_in_flight = Gauge("gristmill_max_in_flight", "Requests that the engine holds at most")
admission_budget_tokens = Gauge(
    "gristmill_admission_budget_tokens", "Tokens that the engine may be promised; 0 if unknown"
)
committed_tokens = Gauge(
    "gristmill_committed_tokens", "Tokens that what is in the engine will take by its end"
)
queue_requests = Gauge(
    "gristmill_queue_requests", "Requests of the whole queue", ["queue", "state"]
)
queue_bytes = Gauge("gristmill_queue_bytes", "Bytes of all records of the queue", ["queue"])
engine = Gauge(
    "gristmill_engine_info",
    "What the engine is; always 1",
    ["transport", "model", "device", "dtype", "vllm_version"],
)
