"""Divide the cores of this process among several engines on the CPU."""

import os
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/{}"


def core_slices(num_slices: int) -> list[list[int]]:
    """Return the cores of each engine; the sizes differ by one core at most.

    The threads of one core, and the cores of one socket, stay together where they can: engines that
    share a core wait for each other, and memory of another socket is slow.

    Args:
        num_slices: Number of engines, at most the number of cores.
    """
    return sliced(sorted(os.sched_getaffinity(0), key=_place), num_slices)


def sliced(cores: Iterable[int], num_slices: int) -> list[list[int]]:
    """Divide cores, in their order, into slices of nearly equal size."""
    ordered = list(cores)
    bounds = [len(ordered) * number // num_slices for number in range(num_slices + 1)]
    return [ordered[start:end] for start, end in pairwise(bounds)]


def _place(cpu: int) -> tuple[int, int, int]:
    """Return socket, core and number of a logical CPU, the key by which neighbours sort together."""
    return _fact(cpu, "physical_package_id"), _fact(cpu, "core_id"), cpu


def _fact(cpu: int, name: str) -> int:
    try:
        return int(Path(_TOPOLOGY.format(cpu, name)).read_text())
    except (OSError, ValueError):  # the kernel or the sandbox does not say
        return 0
