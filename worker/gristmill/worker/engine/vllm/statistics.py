"""Count the engine's steps and tokens, which vLLM reports once a step on the event loop.

Other modules import this one late, because it imports vLLM for a base class. That class has the
methods that newer versions add to a stat logger.
"""

import time
from collections.abc import Callable
from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

from gristmill.worker import metrics
from gristmill.worker.engine.interface import EngineStats


class StepCounter(StatLoggerBase):  # type: ignore[misc]
    """A stat logger of vLLM that adds up the steps of one data-parallel engine.

    vLLM also keeps its Prometheus logger, so `vllm:*` series are in the default registry.
    """

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self.running = self.waiting = self.steps = 0
        self.step_s, self._recorded_at = 0.0, 0.0
        self.kv_cache_usage = 0.0
        self.prompt_tokens = self.output_tokens = self.preemptions = 0
        self.prefix_cache_hits = self.prefix_cache_queries = 0

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, *args: object, **kwargs: object
    ) -> None:
        """Add one step.

        In `scheduler_stats` the prefix cache numbers are differences; the others are gauges.
        """
        self._add_time(time.perf_counter())
        self.steps += 1
        if scheduler_stats is not None:
            self.running = scheduler_stats.num_running_reqs
            self.waiting = (
                scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs
            )
            self.kv_cache_usage = scheduler_stats.kv_cache_usage
            self.prefix_cache_queries += scheduler_stats.prefix_cache_stats.queries
            self.prefix_cache_hits += scheduler_stats.prefix_cache_stats.hits
        if iteration_stats is not None:
            self.output_tokens += iteration_stats.num_generation_tokens
            self.prompt_tokens += iteration_stats.num_prompt_tokens
            self.preemptions += iteration_stats.num_preempted_reqs

    def _add_time(self, now_s: float) -> None:
        """Add the seconds since the previous step, unless the engine was idle meanwhile."""
        if self.running:
            self.step_s += now_s - self._recorded_at
            metrics.step.observe(now_s - self._recorded_at)
        self._recorded_at = now_s

    def log_engine_initialized(self) -> None:
        """Do nothing, because the worker logs the start."""


def counting(counters: list[StepCounter]) -> Callable[..., StepCounter]:
    """Return the factory that vLLM calls for each engine; it adds its loggers to `counters`."""

    def make(vllm_config: Any, engine_index: int = 0) -> StepCounter:
        counters.append(StepCounter(vllm_config, engine_index))
        return counters[-1]

    return make


def summed(counters: list[StepCounter]) -> EngineStats:
    """Return the sum over all engines; `kv_cache_usage` is their mean."""
    if not counters:
        return EngineStats()
    return EngineStats(
        running=sum(each.running for each in counters),
        waiting=sum(each.waiting for each in counters),
        kv_cache_usage=sum(each.kv_cache_usage for each in counters) / len(counters),
        prompt_tokens=sum(each.prompt_tokens for each in counters),
        output_tokens=sum(each.output_tokens for each in counters),
        preemptions=sum(each.preemptions for each in counters),
        steps=sum(each.steps for each in counters),
        step_s=sum(each.step_s for each in counters),
        prefix_cache_hits=sum(each.prefix_cache_hits for each in counters),
        prefix_cache_queries=sum(each.prefix_cache_queries for each in counters),
    )
