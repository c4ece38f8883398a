"""Test that each process asks for AMX before vLLM computes, and what a refusal does.

A processor without AMX can show only the order of the calls.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from gristmill.shared.errors import EngineDied
from gristmill.worker.engine import InProcessEngine
from gristmill.worker.engine.vllm import compat
from gristmill.worker.engine.vllm.amx import prepare_amx
from gristmill.worker.engine.vllm.arguments import CPU_WORKER

pytestmark = pytest.mark.asyncio(loop_scope="function")

HAS_AMX = "amx_tile" in Path("/proc/cpuinfo").read_text()
BODY = b'{"model": "tiny", "prompt": "hello", "max_tokens": 5, "ignore_eos": true}'


class Processor:
    """A fake of `torch.cpu`'s answers, which records the order of the questions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, has_amx: bool, grants: bool) -> None:
        import torch
        from vllm.v1.worker.cpu_worker import CPUWorker

        self.asked: list[str] = []
        self._has_amx, self._grants = has_amx, grants
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", self._is_supported)
        monkeypatch.setattr(torch.cpu, "_init_amx", self._request)
        monkeypatch.setattr(CPUWorker, "init_device", lambda worker: self.asked.append("device"))

    def _is_supported(self) -> bool:
        self.asked.append("supported")
        return self._has_amx

    def _request(self) -> bool:
        self.asked.append("request")
        return self._grants


async def test_worker_asks_for_amx_before_vllm_sets_its_device_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from gristmill.worker.engine.vllm.cpu_worker import AmxWorker

    processor = Processor(monkeypatch, has_amx=True, grants=True)
    worker = object.__new__(AmxWorker)  # without weights and configuration
    worker.init_device()
    assert processor.asked == ["supported", "request", "device"]
    assert f"{AmxWorker.__module__}.{AmxWorker.__qualname__}" == CPU_WORKER


async def test_processor_without_amx_is_not_asked_for_permission(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    processor = Processor(monkeypatch, has_amx=False, grants=True)
    assert prepare_amx() == "absent"
    assert processor.asked == ["supported"]


async def test_refused_amx_is_hidden_from_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    processor = Processor(monkeypatch, has_amx=True, grants=False)
    assert prepare_amx() == "refused"
    assert not compat.has_amx()
    assert processor.asked == ["supported", "request"]


async def test_torch_without_these_private_names_counts_as_a_processor_without_amx(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    monkeypatch.delattr(torch.cpu, "_is_amx_tile_supported")
    monkeypatch.delattr(torch.cpu, "_init_amx")
    assert prepare_amx() == "absent"


@pytest.mark.skipif(not HAS_AMX, reason="the processor has no AMX to refuse")
async def test_engine_in_a_sandbox_that_refuses_amx_computes_without_it(argv: list[str]) -> None:
    program = Path(__file__).with_name("without_amx.py")
    engine = await asyncio.create_subprocess_exec(
        sys.executable, str(program), *argv, stdout=subprocess.PIPE
    )
    output, _ = await engine.communicate()
    assert engine.returncode == 0
    assert b"amx.refused" in output
    assert json.loads(output.splitlines()[-1]) == ["absent", 200, 5]


@pytest.mark.long
@pytest.mark.alone  # the children wait for each other with busy loops
@pytest.mark.timeout(600)
async def test_children_of_tensor_parallelism_compute_and_their_death_is_told(
    argv: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM spawns the children, so each must ask for AMX itself."""
    core = min(os.sched_getaffinity(0))
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", f"{core}|{core}")
    engine = InProcessEngine([*argv, "--tensor-parallel-size", "2"])
    await engine.start()
    try:
        answered = await engine.post("/v1/completions", BODY)
        assert (answered.status, answered.output_tokens) == (200, 5)
        children = psutil.Process().children(recursive=True)
        (child,) = [process for process in children if "Worker_TP1" in process.name()]
        child.send_signal(signal.SIGILL)
        # vLLM may log the death before the kernel knows its code.
        with pytest.raises(EngineDied, match=r"VllmWorker-1 (was killed by SIGILL|died)"):
            await engine.post("/v1/completions", BODY)
    finally:
        await engine.close()
