"""A worker that refills its engine in gulps, with the stub engine on a true Redis."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client import REGISTRY
from queues import fresh_queue
from workers import local_worker, settings_for

from gristmill.shared.audit import audit
from gristmill.shared.operations import Limits
from gristmill.shared.queue import Queue
from gristmill.shared.request import COMPLETIONS, Request
from gristmill.worker.admission import gulps
from gristmill.worker.engine import Response, StubEngine

NUM_SEQS = 16


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[Queue]:
    async with fresh_queue(redis_url, Limits(lease_ms=10_000)) as queue:
        yield queue


class CountingEngine(StubEngine):
    """Notes how many requests it holds at most."""

    def __init__(self) -> None:
        super().__init__(token_delay_s=0.002, max_num_seqs=NUM_SEQS, kv_cache_tokens=10**9)
        self.num_held = self.most_held = 0

    async def post(self, endpoint: str, body: bytes, **options: Any) -> Response:
        self.num_held += 1
        self.most_held = max(self.most_held, self.num_held)
        try:
            return await super().post(endpoint, body, **options)
        finally:
            self.num_held -= 1


def a_prompt(max_tokens: int, **fields: object) -> Request:
    return Request.from_body(
        {"prompt": "word", "max_tokens": max_tokens}, endpoint=COMPLETIONS, **fields
    )


def num_closed(reason: str) -> float:
    return REGISTRY.get_sample_value("gristmill_claims_total", {"closed_by": reason}) or 0


async def until_done(queue: Queue, number: int) -> None:
    while (await queue.stats()).counters.get("succeeded", 0) < number:
        await asyncio.sleep(0.005)


async def test_gulps_are_filled_and_no_request_waits_in_the_engine(
    queue: Queue, redis_url: str
) -> None:
    engine, before = CountingEngine(), num_closed("gulp")
    await queue.submit([a_prompt(5 + i % 40) for i in range(300)])
    async with local_worker(settings_for(redis_url, queue, refill=4), engine):
        await until_done(queue, 300)
    assert engine.most_held == NUM_SEQS
    assert num_closed("gulp") > before
    assert await audit(queue) == []


async def test_an_urgent_request_takes_a_place_that_waits_for_a_gulp(
    queue: Queue, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gulps, "MAX_WAIT_S", 600)
    engine, before = CountingEngine(), num_closed("urgent")
    running = [a_prompt(1), *(a_prompt(10**6) for _ in range(NUM_SEQS - 1))]
    await queue.submit(running + [a_prompt(1) for _ in range(NUM_SEQS)])
    urgent = a_prompt(1, priority="high")
    async with local_worker(
        settings_for(redis_url, queue, refill=NUM_SEQS, drain_timeout_s=0), engine
    ):
        await until_done(queue, 1)
        await queue.submit([urgent])
        await until_done(queue, 2)
        (result,) = await queue.results([urgent.id])
        assert result is not None
        assert result.status == "succeeded"
        assert num_closed("urgent") == before + 1
