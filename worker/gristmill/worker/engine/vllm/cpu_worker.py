"""Extend vLLM's worker on a CPU: ask for AMX before it computes.

vLLM imports this class by name (`--worker-cls`) in each process that computes. These include the
spawned children of tensor parallelism. `arguments.py` names it unless the operator names another.
"""

from vllm.v1.worker.cpu_worker import CPUWorker

from gristmill.worker.engine.vllm.amx import prepare_amx


class AmxWorker(CPUWorker):  # type: ignore[misc]  # vLLM has no types here
    """A `CPUWorker` that may use AMX."""

    def init_device(self) -> None:
        """Ask for AMX, then choose kernels and set up the device as vLLM does."""
        prepare_amx()
        super().init_device()
