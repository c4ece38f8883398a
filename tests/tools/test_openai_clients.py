"""Unmodified clients of OpenAI's API against a gateway and a worker with a true engine.

The test installs the newest clients into an environment of its own, so it needs a package index.
"""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from gateways import gateway_settings, running_gateway
from models import tiny_model
from queues import fresh_queue
from workers import TRUE, worker_process

from gristmill.local.redis_server import running_server
from gristmill.shared.operations import Limits

CLIENTS = ("openai", "langchain-openai", "litellm", "mcp", "instructor")
CALLS = Path(__file__).with_name("client_calls.py")
MODEL = "tiny"
FLAGS = [
    *("--served-model-name", MODEL, "--enforce-eager", "--max-num-seqs", "8"),
    *("--kv-cache-memory-bytes", str(64 * 2**20)),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    *("--tool-strict-level", "parameter"),
    # A random model likes blanks, and would fill a JSON answer with them up to its limit.
    *("--structured-outputs-config", '{"backend": "xgrammar", "disable_any_whitespace": true}'),
]

pytestmark = [pytest.mark.tools, pytest.mark.timeout(900)]


@pytest.fixture
def interpreter(tmp_path: Path) -> str:
    """Return an interpreter whose environment has the clients, and nothing else."""
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = str(folder / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", *CLIENTS], check=True)
    return python


async def test_clients_get_texts_objects_and_tool_calls(interpreter: str, tmp_path: Path) -> None:
    argv = ["--", "--model", str(tiny_model()), *FLAGS]
    with running_server() as url:
        async with (
            fresh_queue(url, Limits(lease_ms=3000)) as queue,
            running_gateway(gateway_settings(url, queue, tmp_path / "files")) as gateway,
            worker_process(TRUE, url, queue, tmp_path / "worker.log", argv, OMP_NUM_THREADS="1"),
        ):
            done = await asyncio.to_thread(
                subprocess.run, [interpreter, str(CALLS), f"{gateway.url}/v1", MODEL],
                capture_output=True, text=True, check=False, cwd=tmp_path,
                env={"PATH": "/usr/bin:/bin", "OPENAI_API_KEY": "any", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
            )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["models"] == [MODEL]
    assert found["texts"] == [True] * 5
    places = found["structured"] + found["tools"]
    assert len(places) == 9
    assert {place["city"] for place in places} <= {"Oslo", "Rome"}
    assert found["refused"] == [400, 404, 400]
