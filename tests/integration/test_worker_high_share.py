"""A worker that keeps places for requests of the lane `high`, with the stub engine on a true Redis."""

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest
from prometheus_client import REGISTRY
from queues import claim, die, fresh_queue, open_worker
from workers import local_worker, settings_for

from gristmill.shared.audit import audit
from gristmill.shared.operations import Limits
from gristmill.shared.queue import Queue
from gristmill.shared.request import COMPLETIONS, Request
from gristmill.worker.admission import gulps
from gristmill.worker.engine import Response, StubEngine
from gristmill.worker.settings import WorkerSettings

NUM_SEQS = 16
NUM_KEPT = 4
LONG = 10**6
"""Output tokens of a request that does not end within a test."""


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[Queue]:
    async with fresh_queue(redis_url, Limits(lease_ms=10_000)) as queue:
        yield queue


class LaneEngine(StubEngine):
    """Notes how many requests of a lane it holds now and at most, and the order in which they came."""

    def __init__(self, kv_cache_tokens: int = 10**9) -> None:
        super().__init__(
            token_delay_s=0.002, max_num_seqs=NUM_SEQS, kv_cache_tokens=kv_cache_tokens
        )
        self.held = {"batch": 0, "live": 0}
        self.most = {"batch": 0, "live": 0}
        self.came: list[str] = []

    async def post(self, endpoint: str, body: bytes, **options: Any) -> Response:
        lane = "live" if b'"live"' in body else "batch"
        self.came.append(lane)
        self.held[lane] += 1
        self.most[lane] = max(self.most[lane], self.held[lane])
        try:
            return await super().post(endpoint, body, **options)
        finally:
            self.held[lane] -= 1


def batch_request(max_tokens: int = LONG) -> Request:
    return Request.from_body({"prompt": "batch", "max_tokens": max_tokens}, endpoint=COMPLETIONS)


def live_request(max_tokens: int = 1) -> Request:
    return Request.from_body(
        {"prompt": "live", "max_tokens": max_tokens}, endpoint=COMPLETIONS, priority="high"
    )


def settings(redis_url: str, queue: Queue, names: str = "", **fields: Any) -> WorkerSettings:
    """Return the settings of a worker that keeps `NUM_KEPT` places; `names` are its queues."""
    share = {"high_share": NUM_KEPT / NUM_SEQS, "drain_timeout_s": 0}
    return settings_for(redis_url, queue, **(share | {"queue": names or queue.keys.queue} | fields))


async def until_holding(engine: LaneEngine, lane: str, number: int) -> None:
    while engine.held[lane] < number:
        await asyncio.sleep(0.005)


async def until_done(queue: Queue, number: int) -> None:
    while (await queue.stats()).counters.get("succeeded", 0) < number:
        await asyncio.sleep(0.005)


def num_closed(reason: str) -> float:
    return REGISTRY.get_sample_value("gristmill_claims_total", {"closed_by": reason}) or 0


@pytest.mark.parametrize("refill", [1, 4])
async def test_a_live_request_starts_at_once_beside_long_batch_work(
    queue: Queue, redis_url: str, refill: int
) -> None:
    engine, before = LaneEngine(), num_closed("urgent")
    await queue.submit([batch_request() for _ in range(3 * NUM_SEQS)])
    async with local_worker(settings(redis_url, queue, refill=refill), engine):
        await until_holding(engine, "batch", NUM_SEQS - NUM_KEPT)
        for number in range(1, 4):
            await queue.submit([live_request() for _ in range(NUM_KEPT)])
            await until_done(queue, number * NUM_KEPT)
    assert engine.most == {"batch": NUM_SEQS - NUM_KEPT, "live": NUM_KEPT}
    assert num_closed("urgent") > before
    assert await audit(queue) == []


async def test_a_live_request_of_another_queue_starts_at_once(queue: Queue, redis_url: str) -> None:
    engine, other = LaneEngine(), Queue(queue.redis, f"{queue.keys.queue}.b", queue.limits)
    both = f"{queue.keys.queue}:9,{other.keys.queue}:1"
    await queue.submit([batch_request() for _ in range(2 * NUM_SEQS)])
    await other.submit([batch_request() for _ in range(2 * NUM_SEQS)])
    async with local_worker(settings(redis_url, queue, names=both), engine):
        await until_holding(engine, "batch", NUM_SEQS - NUM_KEPT)
        await other.submit([live_request()])
        await until_done(other, 1)
    assert engine.most["batch"] == NUM_SEQS - NUM_KEPT
    assert await audit(queue) + await audit(other) == []


async def test_batch_work_takes_no_kept_place_that_a_live_request_leaves(
    queue: Queue, redis_url: str
) -> None:
    engine = LaneEngine()
    await queue.submit([batch_request(5 + i % 40) for i in range(300)])
    async with local_worker(settings(redis_url, queue), engine):
        for number in range(30):
            await queue.submit([live_request(1 + number)])
        await until_done(queue, 330)
    assert engine.most["batch"] == NUM_SEQS - NUM_KEPT
    assert await audit(queue) == []


async def test_live_requests_may_take_every_place(queue: Queue, redis_url: str) -> None:
    engine = LaneEngine()
    await queue.submit([live_request(LONG) for _ in range(2 * NUM_SEQS)])
    async with local_worker(settings(redis_url, queue), engine):
        await until_holding(engine, "live", NUM_SEQS)
    assert engine.most["live"] == NUM_SEQS


async def test_the_cache_has_room_for_a_live_request(queue: Queue, redis_url: str) -> None:
    """The cache is full long before the places are."""
    engine = LaneEngine(kv_cache_tokens=4 * LONG)
    await queue.submit([batch_request() for _ in range(NUM_SEQS)])
    async with local_worker(settings(redis_url, queue), engine):
        await until_holding(engine, "batch", 2)
        await queue.submit([live_request()])
        await until_done(queue, 1)
    assert engine.most["batch"] == 2


@pytest.mark.parametrize(("high_share", "refill"), [(0.25, 1), (0.25, 12), (0, 12)])
async def test_a_flood_of_live_requests_leaves_batch_work_its_turns(
    queue: Queue, redis_url: str, high_share: float, refill: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With gulps, urgent claims would take each free place before a gulp is due."""
    monkeypatch.setattr(gulps, "MAX_WAIT_S", 600)
    engine = LaneEngine()
    await queue.submit([batch_request(1) for _ in range(100)])
    numbers = count()
    ageing = settings(
        redis_url, queue, high_share=high_share, refill=refill, scheduling="fair", ageing_s=0.2
    )
    async with local_worker(ageing, engine), asyncio.timeout(30):
        while "batch" not in engine.came[64:]:
            waiting = (await queue.stats()).counters["queued"]
            flood = [live_request(50 + 37 * next(numbers) % 200) for _ in range(200 - waiting)]
            await queue.submit(flood)
            await asyncio.sleep(0.01)


async def test_a_suspect_takes_no_kept_place(queue: Queue, redis_url: str) -> None:
    engine, other = LaneEngine(), await open_worker(queue)
    await queue.submit([batch_request() for _ in range(2 * NUM_SEQS)])
    await claim(queue, other, 1)
    async with local_worker(settings(redis_url, queue), engine):
        await until_holding(engine, "batch", NUM_SEQS - NUM_KEPT)
        await die(queue, other)
        await queue.submit([live_request()])
        await until_done(queue, 1)
        assert await queue.redis.llen(f"{queue.keys.prefix}pending:suspect:default") == 1
    assert engine.most["batch"] == NUM_SEQS - NUM_KEPT


async def test_a_barrier_keeps_no_places(queue: Queue, redis_url: str) -> None:
    engine = LaneEngine()
    await queue.submit([batch_request(20) for _ in range(NUM_SEQS)])
    barrier = settings(redis_url, queue, batch_policy="static", batch_size=NUM_SEQS)
    async with local_worker(barrier, engine):
        await until_done(queue, NUM_SEQS)
    assert engine.most["batch"] == NUM_SEQS


async def test_a_worker_with_kept_places_ends_when_its_queue_is_empty(
    queue: Queue, redis_url: str
) -> None:
    engine = LaneEngine()
    await queue.submit([batch_request(5) for _ in range(40)])
    async with local_worker(settings(redis_url, queue, until_empty=True), engine) as worker:
        assert await worker.task is None
    assert (await queue.stats()).counters["succeeded"] == 40
