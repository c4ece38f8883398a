"""Build AsyncLLM, in a thread because a build blocks.

A build takes half a minute on a CPU and minutes on a GPU. Only `in_process` calls this module. It
makes vLLM's application itself, because that needs the event loop.
"""

import gc
import os
from argparse import Namespace
from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass
from typing import Any

from gristmill.shared.errors import EngineDied
from gristmill.worker.engine.interface import EngineInfo
from gristmill.worker.engine.vllm import arguments, compat, core_process, trace
from gristmill.worker.engine.vllm.amx import prepare_and_log_amx
from gristmill.worker.engine.vllm.core_process import CoreReports
from gristmill.worker.engine.vllm.devices import Devices, find_devices
from gristmill.worker.engine.vllm.exits import describe_exits
from gristmill.worker.engine.vllm.graphs import has_decode_graphs, warn_of_small_graphs
from gristmill.worker.engine.vllm.start_gate import StartGate, put_gate
from gristmill.worker.engine.vllm.trace import Generation
from gristmill.worker.engine.vllm.weights import describe_weights

SHUTDOWN_S = 10.0
"""Seconds that EngineCore may take to end; then vLLM kills it and its workers."""


@dataclass
class Core:
    """A running AsyncLLM and what belongs to it; `gate` lets groups of requests into EngineCore."""

    engine: Any
    args: Namespace
    devices: Devices
    reports: CoreReports
    counters: list[Any]
    generations: Set[Generation]
    weights: str
    gate: StartGate
    is_dead: bool = False

    def death(self, what: str) -> EngineDied:
        """Mark the engine as dead, and return the error to raise.

        The error names the reason that EngineCore gave, or else how its processes ended.
        """
        self.is_dead = True
        reason = self.reports.reason() or describe_exits(compat.exit_codes(self.engine))
        return EngineDied(f"{what}: {reason}" if reason else what)

    def shut_down(self) -> None:
        """End EngineCore and its workers; safe to call twice.

        It blocks for at most `SHUTDOWN_S`.
        """
        if self.is_dead:  # it may hang, so do not wait for it
            self.reports.kill()
        self.engine.shutdown(timeout=SHUTDOWN_S)
        gc.unfreeze()


def build(argv: Sequence[str], reports: CoreReports, media_domains: Collection[str] = ()) -> Core:
    """Build the engine that `vllm serve` would build from `argv`.

    Args:
        argv: vLLM's arguments, which follow `--` on the worker's command line.
        reports: Receiver of the reports of the engine's processes. Its `kill` ends the build.
        media_domains: Hosts from which vLLM may fetch media, unless `argv` names them.

    Returns:
        The running engine, which has answered no request yet.

    Raises:
        SettingsError: The arguments are wrong.
        EngineDied: EngineCore did not start; none of its processes remains.
    """
    arguments.prepare_environment()
    args = arguments.serve_arguments(argv, media_domains)
    devices = find_devices()
    if devices.is_cpu:
        prepare_and_log_amx()
    arguments.settle_for_device(args, devices)
    return _core(args, devices, reports)


def info_of(core: Core, models: Sequence[str], endpoints: Sequence[str]) -> EngineInfo:
    """Return the description of a built engine.

    Args:
        core: The engine.
        models: Served names.
        endpoints: Served paths.
    """
    import vllm

    config = core.engine.vllm_config
    parallel = config.parallel_config
    return EngineInfo(
        transport="in_process",
        models=tuple(models),
        endpoints=tuple(endpoints),
        max_num_seqs=config.scheduler_config.max_num_seqs * parallel.data_parallel_size,
        max_model_len=config.model_config.max_model_len,
        vllm_version=vllm.__version__,
        device=core.devices.name,
        num_devices=parallel.world_size * parallel.data_parallel_size,
        device_memory_bytes=core.devices.memory_bytes,
        dtype=str(config.model_config.dtype).removeprefix("torch."),
        supports_bf16=core.devices.supports_bf16,
        scheduling_policy=config.scheduler_config.policy,
        max_num_batched_tokens=config.scheduler_config.max_num_batched_tokens,
        kv_cache_tokens=_kv_cache_tokens(config.cache_config, parallel.data_parallel_size),
        weights=core.weights,
        has_decode_graphs=not core.devices.is_cpu and has_decode_graphs(config.compilation_config),
    )


def api_keys(args: Namespace) -> list[str]:
    """Return the API keys that vLLM's application accepts: the flag's, or the environment's."""
    return [key for key in (args.api_key or [os.environ.get("VLLM_API_KEY")]) if key]


def freeze_heap() -> None:
    """Exclude the objects made by a start from garbage collection, as vLLM's server does.

    A full collection over torch and vLLM blocks the event loop for a third of a second.
    """
    gc.collect()
    gc.freeze()


def _core(args: Namespace, devices: Devices, reports: CoreReports) -> Core:
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.async_llm import AsyncLLM

    from gristmill.worker.engine.vllm.statistics import StepCounter, counting

    engine_args, config = arguments.engine_config(args)
    if not devices.is_cpu:
        warn_of_small_graphs(args, config)
    counters: list[StepCounter] = []
    with core_process.isolated(reports):
        try:
            engine = AsyncLLM.from_vllm_config(
                config,
                usage_context=UsageContext.LLM_CLASS,
                stat_loggers=[counting(counters)],
                enable_log_requests=engine_args.enable_log_requests,
                disable_log_stats=engine_args.disable_log_stats,
            )
        except Exception as error:
            ended = describe_exits(compat.exit_codes_of_failed_start(error))
            reason = reports.reason() or ended or error
            raise EngineDied(f"the engine did not start: {reason}") from error
    weights = describe_weights(config.model_config, config.load_config)
    generations, gate = trace.watch(engine), put_gate(engine)
    return Core(engine, args, devices, reports, counters, generations, weights, gate)


def _kv_cache_tokens(cache_config: Any, num_engines: int) -> int:
    """Return the tokens that the KV caches of all engines hold.

    Use vLLM's own count if it has one. In a model with several kinds of attention, the kinds share
    blocks, so blocks times block size would be wrong.
    """
    of_one: int | None = getattr(cache_config, "kv_cache_size_tokens", None)
    if of_one:
        return of_one * num_engines
    return (cache_config.num_gpu_blocks or 0) * (cache_config.block_size or 0)
