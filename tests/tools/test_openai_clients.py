"""Unmodified clients of OpenAI's API against a gateway and a worker with a true engine.

The tests install the newest clients into folders of their own, so they need the indexes of Python and Node packages.
"""

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

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


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[str]:
    """Run a gateway and a worker with a true engine; yield the gateway's base URL."""
    argv = ["--", "--model", str(tiny_model()), *FLAGS]
    with running_server() as url:
        async with (
            fresh_queue(url, Limits(lease_ms=3000)) as queue,
            running_gateway(gateway_settings(url, queue, folder / "files")) as gateway,
            worker_process(TRUE, url, queue, folder / "worker.log", argv, OMP_NUM_THREADS="1"),
        ):
            yield f"{gateway.url}/v1"


async def answers_of(command: list[str], folder: Path, **environment: str) -> Any:
    """Run a program against a gateway; return the JSON of its last line."""
    async with serving(folder) as url:
        done = await asyncio.to_thread(
            subprocess.run, [*command, url, MODEL], capture_output=True, text=True, check=False, cwd=folder,
            env={"PATH": "/usr/bin:/bin", **environment},
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


async def test_clients_get_texts_objects_tool_calls_and_streams(
    interpreter: str, tmp_path: Path
) -> None:
    environment = {"OPENAI_API_KEY": "any", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    found = await answers_of([interpreter, str(CALLS)], tmp_path, **environment)
    assert found["models"] == [MODEL]
    assert found["texts"] == [True] * 5
    places = found["structured"] + found["tools"]
    assert len(places) == 10
    assert {place["city"] for place in places} <= {"Oslo", "Rome"}
    assert found["num_partial"] > 1
    for whole, streamed in found["streams"].values():
        assert whole
        assert streamed == whole
    assert found["refused"] == [400, 404, 400]


async def test_openais_client_for_node(tmp_path: Path) -> None:
    node, npm = shutil.which("node"), shutil.which("npm")
    if not node or not npm:
        pytest.skip("node and npm are not installed")
    install = [npm, "install", "--silent", "--no-fund", "--no-audit", "--prefix", str(tmp_path)]
    subprocess.run([*install, "openai"], check=True)
    calls = shutil.copy(CALLS.with_suffix(".mjs"), tmp_path)  # Node looks for packages beside it
    found = await answers_of([node, str(calls)], tmp_path)
    assert found["whole"]
    assert found["streamed"] == found["helper"] == found["whole"]
    assert found["chunks"] > 2
    assert found["response"]
    assert {place["city"] for place in found["places"]} <= {"Oslo", "Rome"}
    assert len(found["places"]) == 4
    assert found["refused"] == [404, 400]
