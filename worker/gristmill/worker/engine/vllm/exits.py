"""Describe the end of an engine process: what happened, the likely cause and the remedy.

An operator who reads a dead letter at night cannot interpret an exit code such as -4.
"""

import signal
from collections.abc import Mapping

_BY_SIGNAL = {
    signal.SIGILL: (
        "It ran an instruction that the processor or the sandbox does not allow; see "
        "Troubleshooting in docs/operations.md, or install a build of vLLM for this processor"
    ),
    signal.SIGSEGV: (
        "It used memory that is not there, most often because of a bug in vLLM, a driver or a "
        "library; try --enforce-eager or another version of vLLM"
    ),
    signal.SIGBUS: (
        "It used memory that the kernel could not provide, most often because /dev/shm is full or a "
        "model file is incomplete; give the pod a larger /dev/shm and check the model's folder"
    ),
    signal.SIGKILL: (
        "Most often the kernel sends it because a memory limit was reached; raise the limit, or "
        "lower --kv-cache-memory-bytes or --gpu-memory-utilization"
    ),
    signal.SIGABRT: (
        "Native code of vLLM or of a library gave up; the end of the engine's log says which check "
        "failed"
    ),
    signal.SIGFPE: "Native code divided by zero; try another version of vLLM",
    signal.SIGTERM: "A person or a program sent the signal to the engine's process itself",
}


def describe_exits(exit_codes: Mapping[str, int]) -> str:
    """Return how the processes ended, separated by semicolons; empty without processes.

    Args:
        exit_codes: Process name to exit code. A negative code is the number of the signal that
            killed the process, as in `multiprocessing.Process.exitcode`.
    """
    return "; ".join(describe_exit(name, code) for name, code in exit_codes.items())


def describe_exit(process: str, exit_code: int | None) -> str:
    """Return how one process ended, such as `EngineCore was killed by SIGILL. It ran ...`.

    Args:
        process: Name of the process.
        exit_code: Exit code as in `describe_exits`; None if it is unknown.
    """
    if exit_code is None:
        return f"{process} died; the kernel's log (dmesg) or the engine's log may say why"
    if exit_code >= 0:
        return f"{process} ended with exit code {exit_code}; the end of the engine's log says why"
    try:
        number = signal.Signals(-exit_code)
    except ValueError:  # a real-time signal has no name
        return f"{process} was killed by signal {-exit_code}"
    cause = _BY_SIGNAL.get(number)
    return f"{process} was killed by {number.name}." + (f" {cause}" if cause else "")
