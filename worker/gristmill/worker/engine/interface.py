"""Define the interface between a worker and its engine, the same for every transport.

The runner calls `post` for each request, and admission calls `stats` before each claim. The
supervisor calls `start` and `check`. The loop calls `evidence` after a death, and the worker's
process calls `close` at its end. A `Response` holds the request's own outcome, errors included.
`post` raises only failures that are not the request's own, such as `EngineUnavailable` or
`EngineDied`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

OnEvent = Callable[[bytes], None]
"""Takes one server-sent event: the bytes of its lines, with the blank line at its end."""

Transport = Literal["in_process", "remote", "stub"]


@dataclass(frozen=True)
class RunLimits:
    """Limits of one request: of its time, its repetition and its answer's size.

    Attributes:
        max_request_s: Seconds from the request's arrival at the engine to its answer.
        max_repeated_tokens: Output tokens that may repeat one pattern; 0 for any number.
        max_result_bytes: Bytes of the longest answer that `RemoteEngine` accepts from a server.
    """

    max_request_s: float = 3600.0
    max_repeated_tokens: int = 0
    max_result_bytes: int = 32 * 2**20


@dataclass(frozen=True)
class EngineInfo:
    """The description of a started engine; it does not change until the next start.

    Attributes:
        transport: The kind of engine: `in_process`, `remote` or `stub`.
        models: Served names, LoRA adapters included; the first is the base model.
        endpoints: Paths that this engine answers, such as `/v1/chat/completions`.
        max_num_seqs: Sequences that the engine runs at the same time.
        max_model_len: Prompt plus output tokens of one sequence; 0 when a server does not say.
        vllm_version: Version of vLLM; empty when a server does not say.
        weights: What tells the weights of the base model: `commit:` and the commit of a hub's snapshot, or
            `sha256:` and a digest (`engine/vllm/weights.py`). Empty when unknown.
        device: Name of the device, such as `NVIDIA H100 80GB HBM3` or `cpu`.
        num_devices: Number of devices that this engine computes on.
        device_memory_bytes: Bytes of memory of one device; on a CPU, of the machine.
        dtype: Type of the weights in memory, such as `bfloat16`.
        supports_bf16: True if the device computes in bfloat16.
        scheduling_policy: `priority`, or `fcfs` if the operator chose it. Under `fcfs` the
            argument `priority` of `post` has no effect.
        kv_cache_tokens: Tokens that the KV cache holds; 0 when unknown.
        max_num_batched_tokens: Most tokens in one step; 0 when a server does not say.
        body_schemas: The worker's facts that publish the JSON Schemas of bodies (`shared/…/body_schemas.py`);
            empty when unknown.
        has_decode_graphs: True if a step that only decodes runs as one CUDA graph, and so faster than
            a step that also prefills.
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
    weights: str = ""
    body_schemas: Mapping[str, str] = field(default_factory=dict, repr=False)
    has_decode_graphs: bool = False

    @property
    def engine(self) -> str:
        """Name and version of the engine, such as `vllm 0.32.0`; empty when unknown."""
        if self.transport == "stub":
            return "stub"
        return f"vllm {self.vllm_version}" if self.vllm_version else ""


@dataclass(frozen=True)
class Response:
    """The outcome of one request, as `vllm serve` would have answered it.

    Attributes:
        status: HTTP status. A 4xx or 5xx here is the request's own outcome.
        body: JSON bytes, exactly as the engine answered.
        ttft_s: Seconds from the arrival at the engine to the first output token. None if the
            engine generated nothing or the transport cannot see the first token.
        prompt_tokens: Tokens of the prompt; 0 if the body does not say.
        output_tokens: Tokens generated; 0 if the body does not say.
        cached_tokens: Prompt tokens found in the prefix cache; 0 if unknown.
        finish_reason: The finish_reason of the first choice; None for an embedding or an error.
        cut: Name of the limit that ended the request, `max_request_s` or
            `max_repeated_tokens`; None if no limit did.
        is_refusal: True if the worker wrote this answer (`refusals.py`), so that it says nothing of
            the engine's health.
        model: Served name of the model that the body names; empty if it names none.
        device_ms: The request's share of the devices' time, in milliseconds; engines leave it at 0.
    """

    status: int
    body: bytes
    ttft_s: float | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    finish_reason: str | None = None
    cut: str | None = None
    is_refusal: bool = False
    model: str = ""
    device_ms: int = 0


@dataclass(frozen=True)
class EngineStats:
    """Counters and gauges of the engine; counters start at zero at each start.

    Attributes:
        running: Requests in the running batch at the last step.
        waiting: Requests that wait for a place in the running batch.
        kv_cache_usage: Used share of the KV cache, from 0 to 1.
        prompt_tokens: Prompt tokens prefilled.
        output_tokens: Tokens generated.
        preemptions: Times that a full KV cache pushed a running request back to waiting.
        steps: Number of engine steps.
        step_s: Seconds in which the steps ran.
        prefix_cache_hits: Prompt tokens found in the prefix cache.
        prefix_cache_queries: Prompt tokens looked up in the prefix cache.
    """

    running: int = 0
    waiting: int = 0
    kv_cache_usage: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    steps: int = 0
    step_s: float = 0.0
    prefix_cache_hits: int = 0
    prefix_cache_queries: int = 0


class Engine(Protocol):
    """One model behind one interface; all methods run on the worker's event loop."""

    async def start(self) -> EngineInfo:
        """Build or reach the engine and answer one tiny request; after a death, start again.

        Returns:
            The engine's description.

        Raises:
            SettingsError: An argument is wrong; the message names the argument and the remedy.
            EngineDied: The engine did not come up; the message carries the reason.
        """

    async def post(
        self, endpoint: str, body: bytes, *, priority: int = 0, on_event: OnEvent | None = None
    ) -> Response:
        """Answer one request. Cancelling the awaiting task aborts it in the engine.

        Args:
            endpoint: A path such as `/v1/chat/completions`.
            body: The JSON body that a client would post to this path.
            priority: vLLM's priority: a lower number runs sooner, and the earlier arrival wins a
                tie. It replaces the body's own value, so that no request chooses its place.
            on_event: Called with each event of the answer as it comes, for a body with `stream: true`.
                A body for which it is missing may not ask for a stream. `streamed_answer.py` says
                which events are left out.

        Returns:
            The request's outcome, which may be an error that the request caused. Events or not, it
            is the whole answer.

        Raises:
            EngineUnavailable: The engine is overloaded or unreachable; the caller may try again.
            EngineHungUp: The engine lives, but broke off this one request.
            EngineDied: The engine is gone; the requests in flight get no answer.
        """

    def expect_group(self, number: int) -> None:
        """Announce that `number` posts follow at once, so that the engine may start them together."""

    async def check(self, timeout_s: float) -> None:
        """Check that the engine still works, not only that its process exists.

        Args:
            timeout_s: Seconds to wait for the answer, and for a token if the engine holds requests.
                It must exceed the engine's longest step (30 to 60 s on a GPU).

        Raises:
            EngineDied: The engine is dead, did not answer in time, or holds requests and yields no
                token.
        """

    def evidence(self) -> Mapping[str, Any]:
        """Return the evidence of a death as a JSON object without prompts and secrets.

        After a death, call it before `close` or the next `start`, which discard the evidence.
        """

    def stats(self) -> EngineStats:
        """Return the counters; zeros if the transport has none."""

    async def close(self) -> None:
        """Shut down the engine and its processes, and end the posts in flight; safe to call twice."""
