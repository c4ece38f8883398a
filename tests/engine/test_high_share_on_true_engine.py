"""Test on a real engine that a live request runs at once beside batch work that takes all other places."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from queues import fresh_queue
from workers import settings_for

from gristmill.shared.queue import Queue
from gristmill.shared.request import COMPLETIONS, Request
from gristmill.worker.drain import Drain
from gristmill.worker.engine import EngineInfo, InProcessEngine
from gristmill.worker.liveness import Liveness
from gristmill.worker.supervisor import Supervisor
from gristmill.worker.wiring import work

NUM_KEPT = 2
BATCH_TOKENS = 500
"""Long enough for a hundred live requests, and short enough that the cache holds all that run."""


pytestmark = [pytest.mark.long, pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(loop_scope="session")
async def queue(redis_url: str) -> AsyncIterator[Queue]:
    async with fresh_queue(redis_url) as queue:
        yield queue


def a_request(info: EngineInfo, max_tokens: int, priority: str) -> Request:
    body = {"model": info.models[0], "prompt": [5, 6, 7], "ignore_eos": True}
    return Request.from_body(
        body | {"max_tokens": max_tokens}, endpoint=COMPLETIONS, priority=priority
    )


async def test_a_live_request_ends_before_any_batch_work(
    engine: InProcessEngine, info: EngineInfo, queue: Queue, redis_url: str
) -> None:
    batch = [a_request(info, BATCH_TOKENS, "normal") for _ in range(2 * info.max_num_seqs)]
    await queue.submit(batch)
    settings = settings_for(
        redis_url, queue, high_share=NUM_KEPT / info.max_num_seqs, drain_timeout_s=0
    )
    drain, liveness = Drain(0), Liveness(600, 60, 60)
    supervisor = Supervisor(engine, settings, drain, liveness)
    working = asyncio.create_task(work(settings, supervisor, info, drain, liveness))
    while engine.stats().running < info.max_num_seqs - NUM_KEPT:
        await asyncio.sleep(0.005)
    live = [a_request(info, 4, "high") for _ in range(NUM_KEPT)]
    await queue.submit(live)
    while (counters := (await queue.stats()).counters).get("succeeded", 0) < NUM_KEPT:
        await asyncio.sleep(0.005)
    in_flight, results = counters["in_flight"], await queue.results([each.id for each in live])
    drain.start("end of test")
    await working
    assert all(each and each.status == "succeeded" for each in results)
    assert in_flight == info.max_num_seqs - NUM_KEPT
