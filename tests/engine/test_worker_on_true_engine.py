"""Test worker processes with real engines and Redis: each id gets its answer, whatever dies."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest
from workers import TRUE, WorkerProcess, worker_process

from gristmill.producer import Client
from gristmill.shared.audit import audit
from gristmill.shared.connection import connect
from gristmill.shared.operations import Limits
from gristmill.shared.queue import Queue
from gristmill.shared.request import CHAT, COMPLETIONS, Request
from gristmill.shared.results import Result
from gristmill.shared.settings import QueueSettings
from gristmill.worker.engine.vllm.weights import weights_of

MODEL = "tiny"


@pytest.fixture
def queue_name() -> str:
    return f"test-{uuid4().hex[:12]}"


@pytest.fixture
async def queue(redis_url: str, queue_name: str) -> AsyncIterator[Queue]:
    redis = connect(redis_url)
    yield Queue(redis, queue_name, Limits(lease_ms=3000))
    await redis.aclose()


@pytest.fixture
async def client(redis_url: str, queue: Queue) -> AsyncIterator[Client]:
    own = Queue(connect(redis_url), queue.keys.queue, queue.limits)
    async with Client(
        QueueSettings(check_models=False), queue=own
    ) as client:  # the worker's own word on a model counts
        yield client


@pytest.fixture(scope="session")
def worker_argv(model_dir: Path) -> list[str]:
    return [
        *("--", "--model", str(model_dir), "--served-model-name", MODEL, "--enforce-eager"),
        *("--max-num-seqs", "48", "--kv-cache-memory-bytes", str(64 * 2**20)),
        *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    ]


async def start_workers(
    stack: AsyncExitStack, number: int, redis_url: str, queue: Queue, folder: Path, argv: list[str]
) -> list[WorkerProcess]:
    """Start workers in parallel and wait until they are ready; closing the stack ends them."""
    environment = {"GRISTMILL_BEAT_S": "0.5", "OMP_NUM_THREADS": "1", "MAX_IN_FLIGHT": "48"}
    starts = (
        stack.enter_async_context(
            worker_process(TRUE, redis_url, queue, folder / f"worker{i}", argv, **environment)
        )
        for i in range(number)
    )
    return list(await asyncio.gather(*starts))


def completion(number: int, max_tokens: int) -> Request:
    """Return a request whose answer begins with its own prompt, so it can belong to no other."""
    body = {"model": MODEL, "prompt": f"number {number} ", "echo": True, "max_tokens": max_tokens}
    return Request.from_body(body | {"ignore_eos": True}, endpoint=COMPLETIONS, id=f"r{number}")


def chat(number: int, **fields: object) -> Request:
    body = {"model": MODEL, "messages": [{"role": "user", "content": f"number {number}"}]}
    return Request.from_body(
        body | {"max_tokens": 1 + number % 7} | fields, endpoint=CHAT, id=f"r{number}"
    )


def mixed(number: int) -> list[Request]:
    """Return requests of every kind; one in twenty is invalid, and only that one may fail."""
    wrong: list[dict[str, Any]] = [
        {"model": "nobody"},
        {"temperature": -1},
        {"messages": [{"role": "user", "content": "word " * 3000}]},
        {"max_tokens": 10**9},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": {"type": 7}},
            }
        },
    ]
    requests = []
    for i in range(number):
        if i % 20 == 7:
            requests.append(chat(i, **wrong[i // 20 % len(wrong)]))
        elif i % 3 == 0:
            requests.append(chat(i, n=2 if i % 2 else 1, ignore_eos=True))
        else:
            requests.append(completion(i, 1 + i % 40))
    return requests


def check_answer(request: Request, result: Result, number: int) -> None:
    if number % 20 == 7:
        assert result.status == "failed", result
        assert result.status_code in (400, 404), result
        return
    assert result.status == "succeeded", result
    assert result.body is not None
    usage = result.body["usage"]
    if request.endpoint == COMPLETIONS:
        assert result.body["choices"][0]["text"].startswith(f"number {number} ")
        assert usage["completion_tokens"] == 1 + number % 40
    else:
        choices = 2 if number % 2 else 1
        assert len(result.body["choices"]) == choices
        assert usage["completion_tokens"] == choices * (1 + number % 7)


async def until(queue: Queue, counter: str, number: int) -> None:
    while (await queue.stats()).counters.get(counter, 0) < number:
        await asyncio.sleep(0.01)


async def held_by_each(queue: Queue) -> dict[str, int]:
    workers = (await queue.stats()).workers
    return {name: await queue.redis.hlen(queue.keys.in_flight(name)) for name in workers}


async def check_all(queue: Queue, client: Client, requests: list[Request]) -> None:
    results = {result.id: result async for result in client.as_completed([r.id for r in requests])}
    assert len(results) == len(requests)
    for number, request in enumerate(requests):
        check_answer(request, results[request.id], number)
    counters = (await queue.stats()).counters
    assert counters["succeeded"] + counters["failed"] == len(requests)
    assert await audit(queue) == []


@pytest.mark.long
async def test_mixed_requests_over_two_workers_survive_a_sigterm(
    redis_url: str, queue: Queue, client: Client, worker_argv: list[str], tmp_path: Path
) -> None:
    """Scenarios 2, 11, 12 and 18."""
    requests = mixed(500)
    async with AsyncExitStack() as stack:
        first, second = await start_workers(stack, 2, redis_url, queue, tmp_path, worker_argv)
        await client.submit_many(requests)
        await until(queue, "succeeded", 150)
        assert await first.terminate() == 0
        assert first.events("request.completed")
        await check_all(queue, client, requests)
        assert second.events("request.completed")
        assert "vllm:request_success_total" in second.probe("/metrics")[1]
        event = second.events("request.completed")[-1]
        assert event["ttft_s"] > 0


async def test_killed_worker_with_32_in_flight_loses_nothing(
    redis_url: str, queue: Queue, client: Client, worker_argv: list[str], tmp_path: Path
) -> None:
    """Scenarios 1 and 9; the engine must also end with its worker."""
    requests = [completion(i, 400) for i in range(96)]
    async with AsyncExitStack() as stack:
        victim, heir = await start_workers(stack, 2, redis_url, queue, tmp_path, worker_argv)
        children = psutil.Process(victim.process.pid).children(recursive=True)
        assert children
        ids = await client.submit_many(requests)
        while min((await held_by_each(queue)).values(), default=0) < 32:
            await asyncio.sleep(0.01)
        victim.kill()
        _, alive = psutil.wait_procs(children, timeout=20)
        assert alive == []
        results = [r async for r in client.as_completed(ids)]
        assert {result.status for result in results} == {"succeeded"}
        assert all(
            result.body["choices"][0]["text"].startswith(f"number {result.id[1:]} ")
            for result in results
            if result.body
        )
        assert heir.process.poll() is None
    counters = (await queue.stats()).counters
    assert (counters["succeeded"], counters["in_flight"], counters["queued"]) == (96, 0, 0)
    assert counters["crashed"] >= 32
    assert await audit(queue) == []


async def test_prompt_of_20_mb_costs_nobody_a_lease(
    redis_url: str, queue: Queue, client: Client, worker_argv: list[str], tmp_path: Path
) -> None:
    """The prompt blocks the event loop for seconds; heartbeats and probes run in other threads."""
    huge = chat(1000, messages=[{"role": "user", "content": "word " * (4 * 2**20)}])
    requests = [completion(i, 100) for i in range(32)]
    async with AsyncExitStack() as stack:
        (worker,) = await start_workers(stack, 1, redis_url, queue, tmp_path, worker_argv)
        ids = await client.submit_many([*requests[:16], huge, *requests[16:]])
        collecting = asyncio.create_task(collect(client, ids))
        while not collecting.done():
            assert (await asyncio.to_thread(worker.probe, "/healthz"))[0] == 200
            await asyncio.sleep(0.05)
        results = await collecting
        assert worker.events("lease.lost") == worker.events("lease.withheld") == []
        assert await worker.terminate() == 0
    assert results.pop(huge.id).status_code == 400
    assert {(r.status, r.attempt) for r in results.values()} == {("succeeded", 1)}


async def collect(client: Client, ids: list[str]) -> dict[str, Result]:
    return {result.id: result async for result in client.as_completed(ids)}


async def test_killed_engine_is_rebuilt_and_costs_no_request(
    redis_url: str,
    queue: Queue,
    client: Client,
    worker_argv: list[str],
    model_dir: Path,
    tmp_path: Path,
) -> None:
    """Scenario 47, with SIGKILL."""
    requests = [completion(i, 300) for i in range(24)]
    async with AsyncExitStack() as stack:
        (worker,) = await start_workers(stack, 1, redis_url, queue, tmp_path, worker_argv)
        ids = await client.submit_many(requests)
        await until(queue, "in_flight", 24)
        kill_engine(worker)
        results = [result async for result in client.as_completed(ids)]
        assert {(result.status, result.attempt) for result in results} == {("succeeded", 1)}
        assert len(results) == 24
        maker = {"model": MODEL, "weights": weights_of(str(model_dir))}
        assert all(maker.items() <= result.made_by.items() for result in results)
        assert all(re.match(r"vllm \d+\.\d+", result.made_by["engine"]) for result in results)
        assert worker.events("engine.died")
        assert await worker.terminate() == 0
    stats = await queue.stats()
    assert (stats.counters["crashed"], stats.counters["in_flight"], stats.workers) == (24, 0, {})


def kill_engine(worker: WorkerProcess) -> None:
    """Send SIGKILL to EngineCore, the process that computes."""
    (core,) = (
        child
        for child in psutil.Process(worker.process.pid).children(recursive=True)
        if "EngineCore" in child.name() + " ".join(child.cmdline())
    )
    os.kill(core.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("argv", "code", "reason"),
    [
        (["--model", "/no/such/model"], 2, "model folder /no/such/model does not exist"),
        (["--model", "MODEL", "--no-such-flag"], 2, "no-such-flag"),
        pytest.param(
            ["--model", "MODEL", "--enforce-eager", "--kv-cache-memory-bytes", "1000"],
            1,
            "memory",
            marks=pytest.mark.long,
        ),
    ],
)
async def test_engine_that_cannot_start_says_why_and_claims_nothing(
    redis_url: str, queue: Queue, model_dir: Path, argv: list[str], code: int, reason: str
) -> None:
    """Scenario 20."""
    await queue.submit([completion(1, 1)])
    command = [*TRUE, "--", *(str(model_dir) if arg == "MODEL" else arg for arg in argv)]
    environment = os.environ | {
        "REDIS_URL": redis_url,
        "GRISTMILL_QUEUE": queue.keys.queue,
        "GRISTMILL_HEALTH_PORT": "0",
    }
    ended = await asyncio.to_thread(
        subprocess.run, command, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == code, ended.stdout[-2000:] + ended.stderr[-2000:]
    assert reason in ended.stdout
    assert (await queue.stats()).depth_by_lane["normal"] == 1


def test_help_of_the_worker_loads_no_engine() -> None:
    script = "import sys, gristmill.worker.commands as c; sys.exit('torch' in sys.modules or 'vllm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
