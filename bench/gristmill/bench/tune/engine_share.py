"""Give an engine its share of the device, if several stand side by side.

The formula is that of `gristmill worker --engines` (`worker/parent/child_plan.py`).
"""

from collections.abc import Sequence

from gristmill.bench.tune.engine_flags import value_of, without_flags
from gristmill.worker.engine.vllm.resource_flags import KV_CACHE_BYTES, UTILIZATION
from gristmill.worker.parent.child_plan import (
    CARD_SHARE,
    EngineShare,
    cpu_shares,
    part_of_card,
)


def utilization(argv: Sequence[str]) -> float:
    """Return the share of the device's memory that all engines may take together."""
    return float(value_of(argv, UTILIZATION) or CARD_SHARE)


def share_of(argv: Sequence[str], slots: int, place: int, *, is_cpu: bool) -> EngineShare:
    """Return the user's flags, the environment and the cores of one engine.

    Args:
        argv: The user's flags. If they fix the bytes of the KV cache, they hold for each engine.
        slots: Number of equal parts of the device.
        place: Number of the part, from 0.
        is_cpu: True if the device is a CPU.
    """
    if slots == 1:
        return EngineShare(argv)
    if is_cpu:
        return cpu_shares(slots, argv)[place]
    if value_of(argv, KV_CACHE_BYTES):
        return EngineShare(argv)
    return EngineShare([*argv, *part_of_card(utilization(argv), slots)])


def for_each_engine(argv: Sequence[str], engines: int) -> list[str]:
    """Return the user's flags for a `gristmill worker` with this number of engines.

    The worker reads `--gpu-memory-utilization` as the share of each engine. Without this flag it
    divides the device itself.
    """
    if engines == 1 or not value_of(argv, UTILIZATION):
        return [*argv]
    return [*without_flags(argv, [UTILIZATION]), *part_of_card(utilization(argv), engines)]
