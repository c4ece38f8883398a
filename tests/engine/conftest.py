"""Provide real vLLM engines on the CPU with a tiny model; nothing here is a mock.

All tests of the session share one engine in this process and one vLLM server with the same
arguments. A test that breaks an engine builds a separate one.
"""

import os
import socket
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
from models import tiny_model

from gristmill.local.redis_server import running_server
from gristmill.worker.engine import EngineInfo, InProcessEngine, RemoteEngine
from gristmill.worker.engine.vllm.arguments import CPU_WORKER

# Use one compute thread. Two threads on two busy cores wait for each other and take ten times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")

MODEL = "tiny"
KV_CACHE_BYTES = 64 * 2**20
STOP_S = 20

# Warnings of vLLM, torch and their dependencies, which we cannot fix. For every other category and
# module the filters of pyproject.toml stay in force.
VLLM_WARNINGS = (
    "default::DeprecationWarning",
    "default::FutureWarning",
    "default::UserWarning",
    "default::RuntimeWarning:vllm",
)


def pytest_configure() -> None:
    # After a shutdown vLLM drops a ZeroMQ context whose sockets it has closed. A finaliser then
    # warns, perhaps after the last test, when the filters of pyproject.toml no longer apply.
    warnings.filterwarnings("ignore", "Unclosed context", ResourceWarning)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Loosen the warning filters and the time limit for the tests of this folder only."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(180))
            for line in VLLM_WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(line))


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """Return the URL of one Redis server for all tests of the session."""
    with running_server() as url:
        yield url


@pytest.fixture(scope="session")
def model_dir() -> Path:
    return tiny_model()


@pytest.fixture(scope="session")
def argv(model_dir: Path) -> list[str]:
    """Return vLLM's arguments for a small engine that starts fast."""
    return [
        *("--model", str(model_dir), "--served-model-name", MODEL),
        *("--max-num-seqs", "8", "--max-num-batched-tokens", "4096"),
        *("--kv-cache-memory-bytes", str(KV_CACHE_BYTES)),
        *("--enforce-eager", "--no-enable-prefix-caching"),
        *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        # A random model likes blanks, and would fill a JSON answer with them up to its limit.
        "--structured-outputs-config",
        '{"backend": "xgrammar", "disable_any_whitespace": true}',
    ]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def in_process(argv: list[str]) -> AsyncIterator[tuple[InProcessEngine, EngineInfo]]:
    engine = InProcessEngine(argv)
    yield engine, await engine.start()
    assert engine._core
    processes = engine._core.engine.engine_core.resources.engine_manager.processes
    await engine.close()
    codes = [process.exitcode for process in processes]
    assert codes == [0], "vLLM had to kill the idle engine after `SHUTDOWN_S`"


@pytest.fixture(scope="session")
def engine(in_process: tuple[InProcessEngine, EngineInfo]) -> InProcessEngine:
    return in_process[0]


@pytest.fixture(scope="session")
def info(in_process: tuple[InProcessEngine, EngineInfo]) -> EngineInfo:
    return in_process[1]


@pytest.fixture(scope="session")
def server_url(argv: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the URL of a vLLM server; it runs the module that `vllm serve` runs."""
    port = _free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *argv]
    command += ["--scheduling-policy", "priority", "--shutdown-timeout", "60"]  # our defaults
    command += ["--renderer-num-workers", "2"]  # part of the fingerprint in each answer
    command += ["--worker-cls", CPU_WORKER]  # by itself vLLM does not ask for AMX
    log = tmp_path_factory.mktemp("server") / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1"},
        )
    yield f"http://127.0.0.1:{port}"
    _stop(server)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def over_http(server_url: str) -> AsyncIterator[tuple[RemoteEngine, EngineInfo]]:
    engine = RemoteEngine(server_url, max_num_seqs=8, start_timeout_s=240)
    yield engine, await engine.start()
    await engine.close()


@pytest.fixture(scope="session")
def remote(over_http: tuple[RemoteEngine, EngineInfo]) -> RemoteEngine:
    return over_http[0]


@pytest.fixture(scope="session")
def remote_info(over_http: tuple[RemoteEngine, EngineInfo]) -> EngineInfo:
    return over_http[1]


@pytest.fixture
def engine_processes() -> Callable[[], list[psutil.Process]]:
    """Count the processes that a test's engine has started and that still live."""
    before = set(_children())

    def started() -> list[psutil.Process]:
        return [process for process in _children() if process not in before]

    return started


def _children() -> list[psutil.Process]:
    """Return this process's children, without Python's resource tracker, which stays."""
    found = psutil.Process().children(recursive=True)
    return [each for each in found if not _is_tracker(each)]


def _is_tracker(process: psutil.Process) -> bool:
    try:
        return "resource_tracker" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _stop(server: "subprocess.Popen[bytes]") -> None:
    family = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
    server.terminate()
    _, alive = psutil.wait_procs(family, STOP_S)
    for process in alive:
        process.kill()
    server.wait()
