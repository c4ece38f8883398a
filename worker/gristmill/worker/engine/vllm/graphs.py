"""Tell whether the engine decodes with CUDA graphs, and warn if they are too small.

vLLM captures a graph for each of some batch sizes, up to 512 sequences by default. A larger batch
runs without a graph, which is slower. `building.py` calls this module.
"""

from argparse import Namespace
from typing import Any

import structlog

log = structlog.get_logger()


def has_decode_graphs(compilation_config: Any) -> bool:
    """Return True if a step that only decodes runs as one graph.

    Args:
        compilation_config: vLLM's CompilationConfig. Its `cudagraph_mode` is NONE with
            `--enforce-eager` and on a CPU.
    """
    mode = compilation_config.cudagraph_mode
    return mode is not None and bool(mode.has_full_cudagraphs())


def warn_of_small_graphs(args: Namespace, config: Any) -> None:
    """Log a warning if the largest graph is smaller than the engine's batch, unless a flag chose its size.

    Args:
        args: The parsed arguments of `vllm serve`.
        config: vLLM's VllmConfig.
    """
    if not has_decode_graphs(config.compilation_config):
        return
    max_num_seqs = config.scheduler_config.max_num_seqs
    captured = config.compilation_config.max_cudagraph_capture_size
    is_chosen = args.max_cudagraph_capture_size or args.cudagraph_capture_sizes
    if captured and captured < max_num_seqs and not is_chosen:
        log.warning(
            "engine.graphs_too_small",
            max_num_seqs=max_num_seqs,
            max_cudagraph_capture_size=captured,
            remedy=f"add --max-cudagraph-capture-size {max_num_seqs}, or larger batches run slowly",
        )
