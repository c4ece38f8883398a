"""Measure how busy the GPUs of this process are, with NVML; for `gristmill bench`."""

import os
from collections.abc import Callable
from statistics import mean
from typing import Any


def gpu_meter(num_devices: int) -> Callable[[], float] | None:
    """Return a function that returns the busy share of the visible GPUs' time, 0 to 1.

    Return None if NVML fails.

    Args:
        num_devices: Number of visible devices that the engine uses.
    """
    try:
        from vllm.third_party import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        handles = [_handle(pynvml, index) for index in range(num_devices)]
        _busy(pynvml, handles)
    except pynvml.NVMLError:  # no driver, or it does not report how busy the GPU is
        return None
    return lambda: _busy(pynvml, handles)


def _handle(pynvml: Any, index: int) -> Any:
    """Return NVML's handle of a visible device. NVML itself ignores CUDA_VISIBLE_DEVICES."""
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    name = visible[index] if index < len(visible) else str(index)
    if name.isdigit():
        return pynvml.nvmlDeviceGetHandleByIndex(int(name))
    return pynvml.nvmlDeviceGetHandleByUUID(name)


def _busy(pynvml: Any, handles: list[Any]) -> float:
    percents = [int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu) for handle in handles]
    return mean(percents) / 100
