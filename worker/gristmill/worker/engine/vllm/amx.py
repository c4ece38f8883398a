"""Ask for permission to use AMX, the matrix unit of newer Intel processors.

Linux lets a process use AMX only after the process has asked for permission (kernel documentation,
x86/xstate). SIGILL kills a process that does not ask, at its first AMX instruction. vLLM's CPU
attention kernel uses AMX for bfloat16 and does not ask. If vLLM uses torch.compile, PyTorch's
compiler asks. If it runs a small model with `--enforce-eager`, no code asks (vLLM 0.32.0, PyTorch
2.13.0).

`cpu_worker.py` asks in each process that computes, because vLLM spawns these processes and a
spawned process inherits no permission. `building.py` asks in the worker, where vLLM makes its
configuration.
"""

from typing import Literal

import structlog

from gristmill.worker.engine.vllm import compat

log = structlog.get_logger(__name__)

AmxState = Literal["absent", "granted", "refused"]


def prepare_amx() -> AmxState:
    """Ask for permission to use AMX in this process; call it before vLLM chooses its kernels.

    If the kernel or a sandbox refuses, the function hides AMX from vLLM in this process. vLLM then
    takes its kernels for AVX-512 or AVX2, which are slower and need no permission. A second call
    changes nothing.

    Returns:
        `absent` if the processor has no AMX or this PyTorch cannot tell. Otherwise the kernel's
        answer, `granted` or `refused`.
    """
    if not compat.has_amx():
        return "absent"
    if compat.request_amx():
        return "granted"
    compat.hide_amx()
    return "refused"


def prepare_and_log_amx() -> None:
    """Prepare AMX in the worker's own process, and log the answer."""
    state = prepare_amx()
    if state == "granted":
        log.info("amx.granted")
    elif state == "refused":
        log.warning(
            "amx.refused",
            effect="vLLM computes without AMX, more slowly",
            remedy="allow arch_prctl(ARCH_REQ_XCOMP_PERM) in the sandbox or its seccomp profile",
        )
