"""Plan the workers of one parent: how many, and which share of the machine each gets.

Only this module decides it. `run_worker` asks for the plan; a plan of one worker needs no parent.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gristmill.shared.errors import SettingsError
from gristmill.shared.log import warn
from gristmill.worker.engine.vllm.arguments import cpu_kv_cache_bytes
from gristmill.worker.engine.vllm.cpu_slices import core_slices
from gristmill.worker.engine.vllm.devices import compute_threads
from gristmill.worker.engine.vllm.resource_flags import KV_CACHE_BYTES, UTILIZATION, ResourceFlags
from gristmill.worker.engine.vllm.visible_devices import is_for_cpu, visible_devices
from gristmill.worker.settings import WorkerSettings

CARD_SHARE = 0.9
"""Share of a card's memory that its engines divide.

It is vLLM's own default for one engine, or a little less. Each engine also needs some hundred MB
for its CUDA context, which vLLM does not count, and the last engine starts only if its whole share
is free.
"""

ALL = "all"


@dataclass(frozen=True, slots=True)
class ChildPlan:
    """One worker of a parent.

    Attributes:
        engine: Number of its engine, from 0; labels its logs and series.
        group: Number of its group of devices. The engines of a group start one after another.
        flags: vLLM's flags.
        environment: Environment variables beside the parent's own.
        cores: CPU cores to run on; empty for all.
        num_sharing: Engines of its group, which share the devices' time.
    """

    engine: str
    group: int
    flags: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    cores: Sequence[int] = ()
    num_sharing: int = 1


def planned_children(settings: WorkerSettings, flags: Sequence[str]) -> list[ChildPlan]:
    """Return the workers that the settings ask for.

    Args:
        settings: Number of engines for each group of devices, and the devices.
        flags: vLLM's flags, which follow `--` on the command line.

    Raises:
        SettingsError: The devices do not divide into groups, the engines ask for more memory or cores
            than there are, or engines are asked for that run elsewhere (VLLM_URL).
    """
    num_engines = _num_engines(settings)
    if settings.vllm_url and (num_engines > 1 or settings.devices):
        raise SettingsError(
            "VLLM_URL is set, so the engine runs there; unset GRISTMILL_ENGINES and GRISTMILL_DEVICES"
        )
    shares = [EngineShare(flags)] if num_engines == 1 else _shares(num_engines, flags)
    groups = device_groups(settings.devices, flags) if settings.devices else [{}]
    return [
        ChildPlan(
            str(group * num_engines + number),
            group,
            share.flags,
            {**share.environment, **devices},
            share.cores,
            num_engines,
        )
        for group, devices in enumerate(groups)
        for number, share in enumerate(shares)
    ]


def num_device_groups(devices: str, flags: Sequence[str]) -> int:
    """Return into how many groups the devices divide; each group runs engines of its own.

    Args:
        devices: `all`, or names separated by commas, as GRISTMILL_DEVICES takes them.
        flags: vLLM's flags; the parallel sizes say how many devices an engine needs.

    Raises:
        SettingsError: The devices do not divide, or are not there.
    """
    return len(device_groups(devices, flags))


def device_groups(devices: str, flags: Sequence[str]) -> list[dict[str, str]]:
    """Return for each group of devices the environment that shows it to vLLM; see `num_device_groups`.

    Without an NVIDIA device, `all` is one group, in which vLLM chooses.
    """
    names = _named(devices)
    if not names:
        return [{}]
    size = ResourceFlags.read(flags).num_devices
    if len(names) % size:
        raise SettingsError(
            f"GRISTMILL_DEVICES={devices} names {len(names)} devices ({','.join(names)}), and each engine needs"
            f" {size} by its parallel sizes; name a multiple of {size}, or change the sizes"
        )
    order = os.environ.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # the order of nvidia-smi
    return [
        {
            "CUDA_VISIBLE_DEVICES": ",".join(names[start : start + size]),
            "CUDA_DEVICE_ORDER": order,
        }
        for start in range(0, len(names), size)
    ]


@dataclass(frozen=True, slots=True)
class EngineShare:
    """What one engine of a group gets: `ChildPlan` describes the attributes."""

    flags: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    cores: Sequence[int] = ()


def _num_engines(settings: WorkerSettings) -> int:
    if settings.engines != "auto":
        return settings.engines
    message = (
        "GRISTMILL_ENGINES=auto measures nothing and means 1; gristmill tune finds the best number"
    )
    warn("engines.assumed", message, num_engines=1, remedy="gristmill tune finds the best number")
    return 1


def part_of_card(share: float, num_parts: int) -> list[str]:
    """Return vLLM's flags that give an engine one of some equal parts of a share of a card's memory."""
    return [UTILIZATION, str(int(1000 * share / num_parts) / 1000)]


def _shares(num_engines: int, flags: Sequence[str]) -> list[EngineShare]:
    """Divide the memory and, on a CPU, the cores among the engines of one group."""
    asked = ResourceFlags.read(flags)
    if is_for_cpu():
        return cpu_shares(num_engines, flags)
    if asked.utilization is None:
        flags = [*flags, *part_of_card(CARD_SHARE, num_engines)]
    elif num_engines * asked.utilization > 1:
        raise SettingsError(
            f"{UTILIZATION} is each engine's share of the card, and {num_engines} times {asked.utilization:g} is more"
            f" than 1; leave it out, and each engine gets {CARD_SHARE:g}/{num_engines}, or lower it"
        )
    return [EngineShare(flags)] * num_engines


def cpu_shares(num_engines: int, flags: Sequence[str]) -> list[EngineShare]:
    """Divide the memory and the cores of a CPU among some engines.

    Args:
        num_engines: Number of engines.
        flags: vLLM's flags. If they fix the bytes of the KV cache, they hold for each engine.

    Raises:
        SettingsError: There are fewer cores than engines, or a variable binds all engines to the same cores.
    """
    num_cores = len(os.sched_getaffinity(0))
    if num_engines > num_cores:
        raise SettingsError(
            f"GRISTMILL_ENGINES={num_engines} is more than the {num_cores} cores of this CPU; each engine needs one"
        )
    if os.environ.get("VLLM_CPU_OMP_THREADS_BIND", "auto") not in ("auto", "nobind"):
        raise SettingsError(
            "VLLM_CPU_OMP_THREADS_BIND would bind all engines to the same cores; unset it, and each engine gets"
            " cores of its own"
        )
    has_cache = ResourceFlags.read(flags).has_kv_cache_bytes
    if not has_cache and not os.environ.get("VLLM_CPU_KVCACHE_SPACE"):
        flags = [*flags, KV_CACHE_BYTES, str(cpu_kv_cache_bytes() // num_engines)]
    num_threads = os.environ.get("OMP_NUM_THREADS", str(compute_threads(num_engines)))
    environment = {"OMP_NUM_THREADS": num_threads}
    return [EngineShare(flags, environment, cores) for cores in core_slices(num_engines)]


def _named(devices: str) -> list[str]:
    """Return the names of the devices that GRISTMILL_DEVICES asks for; empty means the CPU."""
    visible = visible_devices()
    if devices == ALL:
        return visible
    names = [name.strip() for name in devices.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise SettingsError(
            f"GRISTMILL_DEVICES={devices} is no list of different devices; write all, or names such as 0,1,2,3"
        )
    if not visible:
        raise SettingsError(
            f"GRISTMILL_DEVICES={devices} names devices, and vLLM sees no NVIDIA device here; write all, which"
            " then means one group on what there is"
        )
    missing = [name for name in names if name.isdigit() and name not in visible]
    if missing and all(name.isdigit() for name in visible):
        raise SettingsError(
            f"GRISTMILL_DEVICES={devices} names {','.join(missing)}; this process may use {','.join(visible)}"
        )
    return names
