"""Give an engine its share of the device, if several stand side by side.

The formula is that of `gristmill worker --engines` (`worker/parent/child_plan.py`).
"""

from collections.abc import Sequence

from gristmill.bench.tune.engine_flags import value_of, without_flags
from gristmill.worker.engine.vllm.resource_flags import KV_CACHE_BYTES, UTILIZATION
from gristmill.worker.parent.child_plan import CARD_SHARE, part_of_card


def utilization(argv: Sequence[str]) -> float:
    """Return the share of the device's memory that all engines may take together."""
    return float(value_of(argv, UTILIZATION) or CARD_SHARE)


def share_flags(argv: Sequence[str], slots: int) -> list[str]:
    """Return vLLM's flags that give an engine one of some equal parts of the memory.

    Args:
        argv: The user's flags. If they fix the bytes of the KV cache, they hold for each engine.
        slots: Number of equal parts.
    """
    if slots == 1 or value_of(argv, KV_CACHE_BYTES):
        return []
    return part_of_card(utilization(argv), slots)


def for_each_engine(argv: Sequence[str], engines: int) -> list[str]:
    """Return the user's flags for a `gristmill worker` with this number of engines.

    The worker reads `--gpu-memory-utilization` as the share of each engine. Without this flag it
    divides the device itself.
    """
    if engines == 1 or not value_of(argv, UTILIZATION):
        return [*argv]
    return [*without_flags(argv, [UTILIZATION]), *share_flags(argv, engines)]


def share_environment(num_cores: int, slots: int) -> dict[str, str]:
    """Return the variables that give an engine on a CPU one of some equal parts of the cores."""
    return {"OMP_NUM_THREADS": str(max(1, num_cores // slots))} if slots > 1 else {}
