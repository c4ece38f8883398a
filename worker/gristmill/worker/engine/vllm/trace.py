"""Collect facts that only the engine's outputs hold: first token, cache hits, an abort.

vLLM's OpenAI layer does not return them. So `watch` wraps `generate`, and the wrapper notes them in
its caller's trace. A context variable carries the trace; tasks that the layer starts inherit it.
"""

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Set
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from gristmill.shared.trace_context import trace_headers
from gristmill.worker.engine.bodies import ABORTED
from gristmill.worker.engine.interface import Response

_CUT_REASONS = {
    "max_request_s": ("length", "max_request_s"),
    "max_repeated_tokens": ("repetition", "repetition_detected"),
}
"""finish_reason and stop_reason of a cut choice, by limit; vLLM's own words where they exist."""


@dataclass
class Trace:
    """Facts about one request.

    `in_process` opens a trace for each post, and the wrapped `generate` fills it in.
    """

    ttft_s: float | None = None
    cached_tokens: int = 0
    is_aborted: bool = False
    cut: str | None = None
    request_ids: list[str] = field(default_factory=list)
    on_tokens: Callable[[], None] = lambda: None  # called once the prompt is tokenized

    def note(self, output: Any) -> None:
        """Add one `RequestOutput`; the outputs of several prompts go into the same trace."""
        self.cached_tokens = max(self.cached_tokens, output.num_cached_tokens or 0)
        self.is_aborted |= any(each.finish_reason == ABORTED for each in output.outputs)
        ttft_s = getattr(output.metrics, "first_token_latency", 0.0)
        if ttft_s > 0 and (self.ttft_s is None or ttft_s < self.ttft_s):
            self.ttft_s = ttft_s

    def completed(self, response: Response) -> Response:
        """Return the response with the facts that its body does not hold."""
        cached_tokens = response.cached_tokens or self.cached_tokens
        return replace(response, ttft_s=self.ttft_s, cached_tokens=cached_tokens, cut=self.cut)


@dataclass(eq=False)
class Generation:
    """One running call of `generate`.

    Attributes:
        request_id: The engine's id of the request.
        ignores_end: True if the request sets `ignore_eos`, and so runs on to its last token.
        cut: Name of the limit that ended the request; None if no limit did. The runaway guard sets
            it before it aborts the request.
        started_at: Monotonic time of the call's start, in seconds.
    """

    request_id: str
    ignores_end: bool
    cut: str | None = None
    started_at: float = field(default_factory=time.monotonic)

    def explain(self, output: Any) -> None:
        """Replace `abort` in the output of a cut request by the limit's own reasons."""
        for each in output.outputs:
            if self.cut and each.finish_reason == ABORTED:
                each.finish_reason, each.stop_reason = _CUT_REASONS[self.cut]


_current: ContextVar[Trace | None] = ContextVar("gristmill_engine_trace", default=None)


@contextlib.contextmanager
def traced() -> Iterator[Trace]:
    """Open a trace that collects the facts about the requests posted inside the block."""
    trace = Trace()
    token = _current.set(trace)
    try:
        yield trace
    finally:
        _current.reset(token)


def watch(engine: Any) -> Set[Generation]:
    """Make the engine note each output in the trace of its caller, and get the caller's span.

    Args:
        engine: An AsyncLLM. The function replaces its `generate` and `encode` in place, where the
            serving objects look them up.

    Returns:
        The running calls of `generate`; the set changes as they start and end.
    """
    generate, encode = engine.generate, engine.encode
    running: set[Generation] = set()
    numbers = count()

    async def noting(
        prompt: Any, sampling_params: Any, request_id: str, **options: Any
    ) -> AsyncIterator[Any]:
        trace = _current.get() or Trace()
        request_id = f"{request_id}-{next(numbers)}"  # bodies may name the same id
        trace.request_ids.append(request_id)
        trace.on_tokens()
        if headers := trace_headers():  # the span of the engine, for vLLM's own spans
            options["trace_headers"] = headers
        generation = Generation(request_id, bool(getattr(sampling_params, "ignore_eos", False)))
        running.add(generation)
        try:
            outputs = generate(prompt, sampling_params, request_id, **options)
            async with contextlib.aclosing(outputs):
                async for output in outputs:
                    generation.explain(output)
                    trace.cut = trace.cut or generation.cut
                    trace.note(output)
                    yield output
        finally:
            running.discard(generation)

    def encoding(*values: Any, **options: Any) -> AsyncIterator[Any]:
        if headers := trace_headers():
            options["trace_headers"] = headers
        outputs: AsyncIterator[Any] = encode(*values, **options)
        return outputs

    engine.generate, engine.encode = noting, encoding
    return running
