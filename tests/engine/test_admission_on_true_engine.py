"""Test scenario 26 on a real engine whose KV cache is far too small for its sequences."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from queues import fresh_queue
from workers import settings_for

from gristmill.shared.operations import Limits
from gristmill.shared.queue import Queue
from gristmill.shared.request import COMPLETIONS, Request
from gristmill.worker.drain import Drain
from gristmill.worker.engine import EngineInfo, InProcessEngine
from gristmill.worker.liveness import Liveness
from gristmill.worker.supervisor import Supervisor
from gristmill.worker.wiring import work

NUM_REQUESTS, MAX_TOKENS = 120, 120

EXPORTED = {
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:num_preemptions",
    "vllm:prefix_cache_queries",
    "vllm:prefix_cache_hits",
    "gristmill_admission_budget_tokens",
    "gristmill_committed_tokens",
}


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[Queue]:
    async with fresh_queue(redis_url, Limits(lease_ms=60_000)) as queue:
        yield queue


@pytest.fixture
async def small(model_dir: Path) -> AsyncIterator[tuple[InProcessEngine, EngineInfo]]:
    """Start an engine of 32 sequences whose cache of 1,024 tokens holds eight of the requests."""
    engine = InProcessEngine(
        [
            *("--model", str(model_dir), "--served-model-name", "tiny", "--max-num-seqs", "32"),
            *("--max-model-len", "512", "--block-size", "32", "--num-gpu-blocks-override", "33"),
            *("--kv-cache-memory-bytes", str(8 * 2**20), "--enforce-eager"),
            "--no-enable-prefix-caching",
        ]
    )
    yield engine, await engine.start()
    await engine.close()


def requests() -> list[Request]:
    body = {"model": "tiny", "prompt": [*range(5, 13)], "ignore_eos": True}
    return [
        Request.from_body(body | {"max_tokens": MAX_TOKENS - i % 40}, endpoint=COMPLETIONS)
        for i in range(NUM_REQUESTS)
    ]


async def preemptions(
    engine: InProcessEngine, info: EngineInfo, queue: Queue, redis_url: str
) -> int:
    """Serve all requests with a worker; return how often the engine preempted one."""
    before = engine.stats().preemptions
    await queue.submit(requests())
    goal = (await queue.stats()).counters.get("succeeded", 0) + NUM_REQUESTS
    settings = settings_for(redis_url, queue)
    drain, liveness = Drain(60), Liveness(600, 60, 60)
    supervisor = Supervisor(engine, settings, drain, liveness)
    working = asyncio.create_task(work(settings, supervisor, info, drain, liveness))
    while (await queue.stats()).counters.get("succeeded", 0) < goal:
        await asyncio.sleep(0.02)
    drain.start("end of test")
    await working
    return engine.stats().preemptions - before


async def test_admission_spares_the_engine_most_preemptions(
    small: tuple[InProcessEngine, EngineInfo], queue: Queue, redis_url: str
) -> None:
    engine, info = small
    assert 32 * 32 <= info.kv_cache_tokens <= 33 * 32  # vLLM keeps one block for itself
    counting = await preemptions(engine, replace(info, kv_cache_tokens=0), queue, redis_url)
    knowing = await preemptions(engine, info, queue, redis_url)
    assert counting > NUM_REQUESTS / 2  # what there is to avoid
    assert knowing < counting / 2
    assert {family.name for family in REGISTRY.collect()} >= EXPORTED
