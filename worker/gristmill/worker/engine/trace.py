"""What only the engine's own outputs say about a request: its first token, its cache hits, an abort.

vLLM's OpenAI layer keeps these to itself, so `generate` is wrapped and notes them in the trace of
whoever called. A context variable carries the trace; tasks that the layer starts inherit it.
"""

import contextlib
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from gristmill.worker.engine.bodies import ABORTED
from gristmill.worker.engine.interface import Response


@dataclass
class Trace:
    """Facts of one request; `in_process` opens one for each post, `generate` fills it in."""

    ttft_s: float | None = None
    cached_tokens: int = 0
    is_aborted: bool = False

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
        return replace(response, ttft_s=self.ttft_s, cached_tokens=cached_tokens)


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


def watch(engine: Any) -> None:
    """Make the engine note each output in the trace of its caller.

    Args:
        engine: An AsyncLLM, changed in place: its serving objects look `generate` up on it.
    """
    generate = engine.generate

    async def noting(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        trace = _current.get()
        async with contextlib.aclosing(generate(*args, **kwargs)) as outputs:
            async for output in outputs:
                if trace is not None:
                    trace.note(output)
                yield output

    engine.generate = noting
