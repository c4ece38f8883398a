"""Two true engines under one parent answer one queue; one is killed, and the other goes on."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
from queues import fresh_queue
from workers import WorkerProcess, worker_process

from gristmill.producer import Client
from gristmill.shared.audit import audit
from gristmill.shared.connection import connect
from gristmill.shared.operations import Limits
from gristmill.shared.queue import Queue
from gristmill.shared.request import COMPLETIONS, Request

MODEL = "tiny"
COMMAND = (sys.executable, "-m", "gristmill.shared.cli", "worker", "--engines", "2", "--")


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[Queue]:
    async with fresh_queue(redis_url, Limits(lease_ms=3000)) as queue:
        yield queue


def completion(number: int) -> Request:
    body = {"model": MODEL, "prompt": f"number {number}", "max_tokens": 300, "ignore_eos": True}
    return Request.from_body(body, endpoint=COMPLETIONS)


async def until_metrics(worker: WorkerProcess, *lines: str) -> str:
    """Wait until the metrics have these lines; return all of them."""
    while True:
        _, text = await asyncio.to_thread(worker.probe, "/metrics")
        if set(lines) <= set(text.splitlines()):
            return text
        assert worker.process.poll() is None, worker.log.read_text()[-3000:]
        await asyncio.sleep(0.1)


def ready(*engines: str) -> list[str]:
    return [f'gristmill_engine_ready{{engine="{engine}"}} 1.0' for engine in engines]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two engines need two cores")
async def test_two_engines_answer_one_queue_and_one_goes_on_when_the_other_is_killed(
    redis_url: str, queue: Queue, argv: list[str], tmp_path: Path
) -> None:
    requests = [completion(number) for number in range(96)]
    async with (
        Client(queue=Queue(connect(redis_url), queue.keys.queue, queue.limits)) as client,
        worker_process(COMMAND, redis_url, queue, tmp_path / "log", argv) as parent,
    ):
        await until_metrics(parent, *ready("0", "1"))
        ids = await client.submit_many(requests)
        workers = (await queue.stats()).workers
        while not all([await queue.redis.hlen(queue.keys.in_flight(name)) for name in workers]):
            await asyncio.sleep(0.01)
        (victim,) = (
            psutil.Process(each["pid"])
            for each in parent.events("worker.started")
            if each["engine"] == "0"
        )
        family = [victim, *victim.children(recursive=True)]
        victim.kill()
        results = [result async for result in client.as_completed(ids)]
        assert {result.status for result in results} == {"succeeded"}
        assert len(results) == len(requests)
        assert psutil.wait_procs(family, 20)[1] == []
        text = await until_metrics(parent, *ready("0", "1"))
        assert 'gristmill_worker_restarts_total{engine="1"} 0.0' in text
        assert 'vllm:num_requests_running{engine="1",exported_engine="0"' in text
        assert await parent.terminate() == 0
    stats = await queue.stats()
    assert (stats.counters["succeeded"], stats.counters["in_flight"], stats.workers) == (96, 0, {})
    assert await audit(queue) == []
