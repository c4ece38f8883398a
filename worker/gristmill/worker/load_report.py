"""Measure what the engine does, for the field `load` of `worker:<worker>`.

The event loop of the worker takes a sample after each heartbeat, and the next heartbeat sends it.
"""

from collections import deque
from collections.abc import Callable

from gristmill.shared.worker_load import MAX_WAITS_FOR, WorkerLoad
from gristmill.worker.engine.interface import EngineStats

RATE_WINDOW_S = 15.0
"""Seconds over which rates are measured: some five heartbeats, so that one long prefill does not show as a jump."""


class LoadReport:
    """Turns the counters of an engine into rates.

    Args:
        engine_stats: Returns the engine's counters.

    Attributes:
        note: The last sample as JSON; empty before the first. The thread of the heartbeat reads it.
    """

    def __init__(self, engine_stats: Callable[[], EngineStats]) -> None:
        self._engine_stats = engine_stats
        self._samples: deque[tuple[float, int, int]] = deque()
        self.note = b""

    def sample(self, now_s: float, num_running: int, waits_for: str | None) -> None:
        """Take a sample.

        Args:
            now_s: Monotonic time in seconds.
            num_running: Requests that the worker has in its engine.
            waits_for: Reason why the worker does not claim; None if it claims.
        """
        stats = self._engine_stats()
        has_counters = stats != EngineStats()
        prompt_rate, output_rate = self._rates(now_s, stats)
        self.note = WorkerLoad(
            num_running=num_running,
            num_waiting=stats.waiting,
            prompt_tokens_per_s=prompt_rate if has_counters else None,
            output_tokens_per_s=output_rate if has_counters else None,
            kv_cache_usage=round(stats.kv_cache_usage, 3) if has_counters else None,
            waits_for=(waits_for or "")[:MAX_WAITS_FOR],
        ).dump()

    def _rates(self, now_s: float, stats: EngineStats) -> tuple[float, float]:
        """Return prompt and output tokens per second over the window."""
        samples, sample = self._samples, (now_s, stats.prompt_tokens, stats.output_tokens)
        if samples and sample[1] + sample[2] < samples[-1][1] + samples[-1][2]:
            samples.clear()  # the engine was started again, and counts from zero
        samples.append(sample)
        while len(samples) > 2 and samples[1][0] <= now_s - RATE_WINDOW_S:
            samples.popleft()
        (start_s, prompt_tokens, output_tokens) = samples[0]
        span_s = now_s - start_s
        if span_s <= 0:
            return 0.0, 0.0
        rates = (sample[1] - prompt_tokens) / span_s, (sample[2] - output_tokens) / span_s
        return round(rates[0], 1), round(rates[1], 1)
