"""Find the devices of this machine without initialising CUDA in this process.

vLLM's platform asks NVML. A call of torch.cuda would take several hundred MB for a context in this
process. vLLM would then spawn its processes instead of forking them. `import vllm` comes first,
because it makes torch's device count fork-safe (vllm/env_override.py).
"""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

import psutil
import structlog

from gristmill.worker.engine.vllm import compat

log = structlog.get_logger(__name__)

_CGROUP_CPU = Path("/sys/fs/cgroup/cpu.max")
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_CGROUP_USED = Path("/sys/fs/cgroup/memory.current")


@dataclass(frozen=True)
class Devices:
    """The devices of this machine; all are of one kind.

    Attributes:
        kind: vLLM's name of the kind, such as `cuda`, `cpu` or `rocm`.
        name: Name of the device, such as `NVIDIA H100 80GB HBM3`.
        num_devices: Number of visible devices; 1 for a CPU.
        memory_bytes: Bytes of memory of one device; for a CPU, of the machine.
        supports_bf16: True if the devices compute in bfloat16.
        num_cores: Cores that this process may use.
    """

    kind: str
    name: str
    num_devices: int
    memory_bytes: int
    supports_bf16: bool
    num_cores: int

    @property
    def is_cpu(self) -> bool:
        """True if the model runs on the CPU."""
        return self.kind == "cpu"


def find_devices() -> Devices:
    """Return the devices that vLLM's platform finds, and log them as `devices.found`."""
    import torch
    import vllm.platforms

    platform = vllm.platforms.current_platform
    is_cpu = platform.device_type == "cpu"
    devices = Devices(
        kind=platform.device_type,
        name=platform.get_device_name(0),
        num_devices=1 if is_cpu else platform.device_count(),
        memory_bytes=_total_memory_bytes(platform.get_device_total_memory, is_cpu=is_cpu),
        supports_bf16=torch.bfloat16 in platform.supported_dtypes,
        num_cores=len(os.sched_getaffinity(0)),
    )
    _log(devices)
    return devices


def available_memory_bytes() -> int:
    """Return the bytes of memory that this process may still use within its container's limit."""
    available = psutil.virtual_memory().available
    limit = _cgroup_limit_bytes()
    if limit is None:
        return available
    return max(0, min(available, limit - int(_CGROUP_USED.read_text())))


def compute_threads(num_engines: int = 1) -> int:
    """Return the number of threads for a model on a CPU: all its cores but one.

    OpenMP's threads spin while they wait for each other. If the event loop or Redis takes a core
    from one thread, all others wait for that thread in each step. Two threads on two busy cores
    were up to eight times slower. A container's CPU quota counts as its number of cores.

    Args:
        num_engines: Engines that share the cores of this process.
    """
    num_cores: float = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
        quota, period = _CGROUP_CPU.read_text().split()
        num_cores = min(num_cores, int(quota) / int(period))
    return max(1, int(num_cores / num_engines) - 1)


def _total_memory_bytes(of_device: object, *, is_cpu: bool) -> int:
    """Return the memory of a device; on a CPU, of the machine within its container's limit.

    On a CPU vLLM would return only the memory of NUMA node 0.
    """
    if not is_cpu:
        return int(of_device(0))  # type: ignore[operator]
    total = psutil.virtual_memory().total
    limit = _cgroup_limit_bytes()
    return total if limit is None else min(total, limit)


def _cgroup_limit_bytes() -> int | None:
    try:
        limit = _CGROUP_LIMIT.read_text().strip()
    except OSError:
        return None
    return int(limit) if limit.isdigit() else None


def _log(devices: Devices) -> None:
    import torch
    import vllm

    facts: dict[str, object] = {}
    if devices.is_cpu:
        facts = {
            "has_avx512_bf16": compat.has_avx512_bf16(),
            "has_amx": compat.has_amx(),
        }
    log.info(
        "devices.found",
        kind=devices.kind,
        device=devices.name,
        num_devices=devices.num_devices,
        memory_bytes=devices.memory_bytes,
        supports_bf16=devices.supports_bf16,
        num_cores=devices.num_cores,
        vllm_version=vllm.__version__,
        torch_version=torch.__version__,
        **facts,
    )
