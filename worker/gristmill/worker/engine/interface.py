"""What a worker may ask of an engine, whichever way the engine is reached.

The loop calls `post` for each request, the watchdog `check`, the supervisor `start`, `evidence` and
`close`. Every answer that belongs to the request itself is a `Response`, errors included; only
what is no fault of the request is raised, as `EngineUnavailable` or `EngineDied`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Transport = Literal["in_process", "remote", "stub"]


@dataclass(frozen=True)
class RunLimits:
    """What ends a request that would run on and on.

    Attributes:
        max_request_s: Seconds from the arrival at the engine to the answer.
        max_repeated_tokens: Output tokens that may be one pattern again and again; 0 for any number.
        max_result_bytes: Of a server's answer no more is read.
    """

    max_request_s: float = 3600.0
    max_repeated_tokens: int = 0
    max_result_bytes: int = 32 * 2**20


@dataclass(frozen=True)
class EngineInfo:
    """What a started engine is and serves; it does not change until the next start.

    Attributes:
        transport: How requests reach the engine.
        models: Served names, LoRA adapters included; the first is the base model.
        endpoints: Paths that this engine answers, such as `/v1/chat/completions`.
        max_num_seqs: Sequences that the engine runs at the same time.
        max_model_len: Prompt plus output tokens of one sequence; 0 when a server does not say.
        vllm_version: Version of vLLM; empty when a server does not say.
        device: Name of the device, such as `NVIDIA H100 80GB HBM3` or `cpu`.
        num_devices: Devices that this engine computes on.
        device_memory_bytes: Memory of one device; on a CPU the machine's.
        dtype: Type of the weights in memory, such as `bfloat16`.
        supports_bf16: Whether the device computes in bfloat16.
        scheduling_policy: `priority`, or `fcfs` when the operator chose it: then `priority` of
            `post` has no effect.
        kv_cache_tokens: Tokens that the KV cache holds; 0 when unknown.
        max_num_batched_tokens: Tokens of one step at most; 0 when a server does not say.
    """

    transport: Transport
    models: tuple[str, ...]
    endpoints: tuple[str, ...]
    max_num_seqs: int
    max_model_len: int = 0
    vllm_version: str = ""
    device: str = ""
    num_devices: int = 0
    device_memory_bytes: int = 0
    dtype: str = ""
    supports_bf16: bool = False
    scheduling_policy: str = ""
    kv_cache_tokens: int = 0
    max_num_batched_tokens: int = 0


@dataclass(frozen=True)
class Response:
    """The outcome of one request, as `vllm serve` would have answered it.

    Attributes:
        status: HTTP status. A 4xx or 5xx here is the request's own outcome.
        body: JSON bytes, untouched.
        ttft_s: Seconds from the arrival at the engine to the first output token; None where
            nothing was generated or the transport cannot see it.
        prompt_tokens: Tokens of the prompt, 0 where the body names none.
        output_tokens: Tokens generated, 0 where the body names none.
        cached_tokens: Prompt tokens found in the prefix cache, 0 where unknown.
        finish_reason: Of the first choice; None for an embedding or an error.
        cut: Which of the `RunLimits` ended it, `max_request_s` or `max_repeated_tokens`; None for none.
    """

    status: int
    body: bytes
    ttft_s: float | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    finish_reason: str | None = None
    cut: str | None = None


@dataclass(frozen=True)
class EngineStats:
    """Counters and gauges of a moment; totals count from the last start.

    Attributes:
        running: Requests in the running batch at the last step.
        waiting: Requests that wait for a place in it.
        kv_cache_usage: Used share of the KV cache, 0 to 1.
        prompt_tokens: Prompt tokens prefilled.
        output_tokens: Tokens generated.
        preemptions: Times a running request was pushed back for want of KV cache.
        steps: Engine steps.
        prefix_cache_hits: Prompt tokens found in the prefix cache.
        prefix_cache_queries: Prompt tokens looked up in it.
    """

    running: int = 0
    waiting: int = 0
    kv_cache_usage: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    steps: int = 0
    prefix_cache_hits: int = 0
    prefix_cache_queries: int = 0


class Engine(Protocol):
    """One model behind one interface; all methods run on the worker's event loop."""

    async def start(self) -> EngineInfo:
        """Build or reach the engine and answer one tiny request; after a death, start anew.

        Returns:
            What the engine is and serves.

        Raises:
            SettingsError: The arguments are wrong; the message names the one and the remedy.
            EngineDied: The engine did not come up; the message carries the reason.
        """

    async def post(self, endpoint: str, body: bytes, *, priority: int = 0) -> Response:
        """Answer one request. Cancelling the awaiting task aborts it in the engine.

        Args:
            endpoint: A path such as `/v1/chat/completions`.
            body: The JSON body, as it would be posted to the path.
            priority: vLLM's: lower runs sooner, ties by arrival; 0 leaves the body's own.

        Returns:
            The request's outcome, errors of its own included.

        Raises:
            EngineUnavailable: Overloaded or unreachable; the same request may be tried again.
            EngineHungUp: It lives, and broke off this one request.
            EngineDied: The engine is gone; what was in flight has no answer.
        """

    async def check(self, timeout_s: float) -> None:
        """Make sure that the engine still works, not only that its process is there.

        Args:
            timeout_s: How long it may take to answer; above the longest step (30 to 60 on a GPU).

        Raises:
            EngineDied: It is dead, did not answer in time, or yields no token for what it holds.
        """

    def evidence(self) -> Mapping[str, Any]:
        """Return what a death leaves to look at; JSON, without prompts and secrets.

        Call it after the death and before `close` or the next `start`.
        """

    def stats(self) -> EngineStats:
        """Return the counters; zeros where the transport has none."""

    async def close(self) -> None:
        """Shut the engine and its processes down; in-flight posts end. Safe to call twice."""
