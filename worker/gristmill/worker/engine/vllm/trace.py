"""What only the engine's own outputs say about a request: its first token, its cache hits, an abort.

vLLM's OpenAI layer keeps these to itself, so `generate` is wrapped and notes them in the trace of
whoever called. A context variable carries the trace; tasks that the layer starts inherit it.
"""

import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Set
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from gristmill.worker.engine.bodies import ABORTED
from gristmill.worker.engine.interface import Response

_CUT_REASONS = {
    "max_request_s": ("length", "max_request_s"),
    "max_repeated_tokens": ("repetition", "repetition_detected"),
}
"""finish_reason and stop_reason of a choice that was cut; vLLM's own words where it has some."""


@dataclass
class Trace:
    """Facts of one request; `in_process` opens one for each post, `generate` fills it in."""

    ttft_s: float | None = None
    cached_tokens: int = 0
    is_aborted: bool = False
    cut: str | None = None

    def note(self, output: Any) -> None:
        """Take in one `RequestOutput`; the outputs of several prompts go into the same trace."""
        self.cached_tokens = max(self.cached_tokens, output.num_cached_tokens or 0)
        self.is_aborted |= any(each.finish_reason == ABORTED for each in output.outputs)
        ttft_s = getattr(output.metrics, "first_token_latency", 0.0)
        if ttft_s > 0 and (self.ttft_s is None or ttft_s < self.ttft_s):
            self.ttft_s = ttft_s

    def completed(self, response: Response) -> Response:
        """Return the response with what the body does not say."""
        cached_tokens = response.cached_tokens or self.cached_tokens
        return replace(response, ttft_s=self.ttft_s, cached_tokens=cached_tokens, cut=self.cut)


@dataclass(eq=False)
class Generation:
    """One call of `generate` that runs.

    Attributes:
        request_id: What the engine calls it.
        ignores_end: Whether it was asked to run on to its last token.
        cut: Which limit ended it, set by the runaway guard before it aborts the request.
        started_at: Monotonic seconds.
    """

    request_id: str
    ignores_end: bool
    cut: str | None = None
    started_at: float = field(default_factory=time.monotonic)

    def explain(self, output: Any) -> None:
        """Say in an output that was cut what cut it, instead of `abort`."""
        for each in output.outputs:
            if self.cut and each.finish_reason == ABORTED:
                each.finish_reason, each.stop_reason = _CUT_REASONS[self.cut]


_current: ContextVar[Trace | None] = ContextVar("gristmill_engine_trace", default=None)


@contextlib.contextmanager
def traced() -> Iterator[Trace]:
    """Collect what the engine says about the requests posted inside."""
    trace = Trace()
    token = _current.set(trace)
    try:
        yield trace
    finally:
        _current.reset(token)


def watch(engine: Any) -> Set[Generation]:
    """Make the engine note each output in the trace of its caller.

    Args:
        engine: An AsyncLLM, changed in place: its serving objects look `generate` up on it.

    Returns:
        What it generates, at any moment.
    """
    generate = engine.generate
    running: set[Generation] = set()
    numbers = count()

    async def noting(
        prompt: Any, sampling_params: Any, request_id: str, **options: Any
    ) -> AsyncIterator[Any]:
        trace = _current.get() or Trace()
        request_id = f"{request_id}-{next(numbers)}"  # a body may name it, and others the same
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

    engine.generate = noting
    return running
