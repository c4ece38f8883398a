"""Test a real engine that dies, hangs or is killed by a prompt: the worker and other requests survive."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
from culprit_worker import CULPRIT
from queues import fresh_queue
from workers import TRUE, WorkerProcess, worker_process

from gristmill.producer import Client
from gristmill.shared.audit import audit
from gristmill.shared.connection import connect
from gristmill.shared.operations import Limits
from gristmill.shared.queue import Queue
from gristmill.shared.request import COMPLETIONS, Request
from gristmill.shared.results import Result

MODEL = "tiny"
CULPRIT_WORKER = (sys.executable, str(Path(__file__).parent.parent / "culprit_worker.py"))
ENVIRONMENT = {
    "GRISTMILL_BEAT_S": "0.5",
    "GRISTMILL_BACKOFF_BASE_S": "0.1",
    "OMP_NUM_THREADS": "1",
    "MAX_IN_FLIGHT": "64",
}


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[Queue]:
    async with fresh_queue(redis_url, Limits(lease_ms=5000)) as queue:
        yield queue


@pytest.fixture
async def client(redis_url: str, queue: Queue) -> AsyncIterator[Client]:
    async with Client(queue=Queue(connect(redis_url), queue.keys.queue, queue.limits)) as client:
        yield client


@pytest.fixture(scope="session")
def worker_argv(model_dir: Path) -> list[str]:
    return [
        *("--", "--model", str(model_dir), "--served-model-name", MODEL, "--enforce-eager"),
        *("--max-num-seqs", "64", "--kv-cache-memory-bytes", str(128 * 2**20)),
        *("--hf-token", "secret-of-the-hub"),
    ]


def completion(prompt: str | list[int], max_tokens: int, **fields: object) -> Request:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True}
    return Request.from_body(body, endpoint=COMPLETIONS, **fields)


def engine_of(worker: WorkerProcess) -> list[psutil.Process]:
    """Return the EngineCore of a worker, which leads a separate session."""
    children = psutil.Process(worker.process.pid).children(recursive=True)
    return [child for child in children if "resource_tracker" not in " ".join(child.cmdline())]


async def collect(client: Client, requests: list[Request]) -> dict[str, Result]:
    ids = [request.id for request in requests]
    return {result.id: result async for result in client.as_completed(ids)}


async def until_running(queue: Queue, number: int) -> None:
    while (await queue.stats()).counters.get("in_flight", 0) < number:
        await asyncio.sleep(0.005)


@pytest.mark.long
async def test_hanging_engine_is_noticed_and_built_anew_under_the_same_lease(
    queue: Queue, client: Client, redis_url: str, tmp_path: Path, worker_argv: list[str]
) -> None:
    """Scenarios 21 and 47: SIGSTOP halts EngineCore, yet vLLM's own health check still passes."""
    requests = [completion(f"number {i}", 400) for i in range(8)]
    environment = ENVIRONMENT | {"GRISTMILL_STALL_TIMEOUT_S": "12"}
    async with worker_process(
        TRUE, redis_url, queue, tmp_path / "worker", worker_argv, **environment
    ) as worker:
        (lease,) = (await queue.stats()).workers
        await queue.submit(requests)
        await until_running(queue, 8)
        (engine,) = engine_of(worker)
        engine.suspend()
        reasons = set()
        while not worker.events("engine.died"):
            assert worker.probe("/healthz")[0] == 200
            reasons.add(worker.probe("/readyz")[1].partition(" for ")[0])
            await asyncio.sleep(0.1)
        assert "no answer of the engine" in reasons
        results = await collect(client, requests)
        assert list((await queue.stats()).workers) == [lease]
        assert not engine.is_running()
        assert await worker.terminate() == 0
    assert {result.status for result in results.values()} == {"succeeded"}
    assert {result.attempt for result in results.values()} == {1}
    assert len(results) == 8
    assert await audit(queue) == []


@pytest.mark.long
@pytest.mark.alone  # what saw two deaths runs one after the other, 63 of them
@pytest.mark.timeout(600)
async def test_one_culprit_among_64_costs_three_deaths_at_most_and_no_bystander(
    queue: Queue, client: Client, redis_url: str, tmp_path: Path, worker_argv: list[str]
) -> None:
    bystanders = [completion(f"number {i}", 60) for i in range(63)]
    culprit = completion(CULPRIT, 400)
    requests = [*bystanders[:31], culprit, *bystanders[31:]]
    await queue.submit(requests)
    async with worker_process(
        CULPRIT_WORKER, redis_url, queue, tmp_path / "worker", worker_argv, **ENVIRONMENT
    ) as worker:
        results = await collect(client, requests)
        deaths = worker.events("engine.died")
        assert await worker.terminate() == 0
    assert {results[each.id].status for each in bystanders} == {"succeeded"}
    assert 2 <= len(deaths) <= 3
    assert "was killed by SIGKILL. " in deaths[0]["error"]
    (letter,) = await queue.dead_letters.newest()
    assert (letter.id, letter.reason) == (culprit.id, "engine_killed")
    assert results[culprit.id].failure.startswith("engine_killed: ")
    evidence = letter.evidence
    assert "was killed by SIGKILL. " in evidence["error"]
    assert evidence["engine_args"][-2:] == ["--hf-token", "***"]
    assert evidence["engine_stats"]["output_tokens"] > 0
    assert any("WARNING" in line for line in evidence["engine_log"])
    assert "66, 6, 66" not in (tmp_path / "worker").read_text()
    assert "66, 6, 66" not in str(evidence)
    assert await audit(queue) == []


@pytest.mark.skipif(
    "GRISTMILL_FAULTS_IN_FULL" not in os.environ, reason="minutes; make test-faults runs it"
)
@pytest.mark.timeout(600)
async def test_three_culprits_cost_no_bystander(
    queue: Queue, client: Client, redis_url: str, tmp_path: Path, worker_argv: list[str]
) -> None:
    """If the worker gives up, the test starts it again, as the kubelet would."""
    requests = [completion(f"number {i}", 60) for i in range(61)]
    culprits = [completion(CULPRIT, 400) for _ in range(3)]
    for place, culprit in zip((10, 30, 50), culprits, strict=True):
        requests.insert(place, culprit)
    await queue.submit(requests)
    collecting = asyncio.create_task(collect(client, requests))
    num_deaths = num_starts = 0
    while not collecting.done():
        log = tmp_path / f"worker{num_starts}"
        num_starts += 1
        async with worker_process(
            CULPRIT_WORKER, redis_url, queue, log, worker_argv, **ENVIRONMENT
        ) as worker:
            ending = asyncio.create_task(asyncio.to_thread(worker.process.wait))
            await asyncio.wait([collecting, ending], return_when=asyncio.FIRST_COMPLETED)
            num_deaths += len(worker.events("engine.died"))
        assert collecting.done() or await ending == 1
    results = await collecting
    dead = {letter.id for letter in await queue.dead_letters.newest()}
    assert dead == {each.id for each in culprits}
    succeeded = [result for result in results.values() if result.status == "succeeded"]
    assert len(succeeded) == 61
    assert num_deaths <= 3 * len(culprits)
    assert await audit(queue) == []
