"""Read those of vLLM's flags that say what an engine takes of its machine.

vLLM's own parser would import torch, which takes seconds and much memory. A parent of several
workers needs only these flags. It does not see flags in a file (`--config`).
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn, Self

from gristmill.shared.errors import SettingsError

UTILIZATION = "--gpu-memory-utilization"
KV_CACHE_BYTES = "--kv-cache-memory-bytes"

_DIMENSIONS = (
    ("-tp", "--tensor-parallel-size"),
    ("-pp", "--pipeline-parallel-size"),
    ("-dp", "--data-parallel-size"),
)


class FlagParser(argparse.ArgumentParser):
    """A parser of some of vLLM's flags, whose errors are a SettingsError."""

    def error(self, message: str) -> NoReturn:  # the base class would end the process
        """Raise the error."""
        raise SettingsError(f"vLLM does not take these arguments: {message}")


@dataclass(frozen=True, slots=True)
class ResourceFlags:
    """What vLLM's flags say about an engine's devices and memory.

    Attributes:
        num_devices: Devices of one engine: tensor times pipeline times data parallel size.
        utilization: Share of each device's memory; None if no flag says it.
        has_kv_cache_bytes: True if a flag gives the size of the KV cache.
    """

    num_devices: int
    utilization: float | None
    has_kv_cache_bytes: bool

    @classmethod
    def read(cls, argv: Sequence[str]) -> Self:
        """Read the flags.

        Args:
            argv: vLLM's arguments, which follow `--` on the worker's command line.

        Raises:
            SettingsError: One of these flags has no number.
        """
        parser = FlagParser(add_help=False, allow_abbrev=False)
        for names in _DIMENSIONS:
            parser.add_argument(*names, type=int, default=1)
        parser.add_argument(UTILIZATION, type=float)
        parser.add_argument(KV_CACHE_BYTES)
        args, _ = parser.parse_known_args([with_dashes(word) for word in argv])
        sizes = (args.tensor_parallel_size, args.pipeline_parallel_size, args.data_parallel_size)
        if min(sizes) < 1:
            raise SettingsError(
                "vLLM's parallel sizes must be at least 1; correct the flags after --"
            )
        num_devices = sizes[0] * sizes[1] * sizes[2]
        return cls(num_devices, args.gpu_memory_utilization, args.kv_cache_memory_bytes is not None)


def with_dashes(word: str) -> str:
    """Return a flag as vLLM names it; it takes underscores too."""
    if not word.startswith("--"):
        return word
    name, is_given, value = word.partition("=")
    return name.replace("_", "-") + is_given + value
