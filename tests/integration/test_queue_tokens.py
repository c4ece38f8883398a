"""Tokens are counted as requests are, and the pace of a queue says how long its work takes."""

import asyncio
from typing import Any

import pytest
from queues import (
    ERROR,
    a_request,
    claim,
    claimed_by,
    counters,
    fail,
    open_worker,
    some_requests,
    succeed,
)

from gristmill.shared.audit import audit
from gristmill.shared.backlog import Backlog
from gristmill.shared.operations import Scheduling, SchedulingPolicy
from gristmill.shared.queue import Queue


async def tokens(queue: Queue) -> tuple[int, int]:
    """Return queued and in-flight tokens."""
    counters = (await queue.stats()).counters
    return counters.get("queued_tokens", 0), counters.get("in_flight_tokens", 0)


async def pace(queue: Queue, field: str) -> int:
    value: Any = await queue.redis.hget(queue.keys.pace, field)
    return int(value)


async def test_tokens_follow_a_request_through_its_life(queue: Queue) -> None:
    worker = await open_worker(queue)
    await queue.submit(some_requests(3, prompt_tokens=10, max_tokens=90))
    assert await tokens(queue) == (300, 0)
    first, second = await claim(queue, worker, 2)
    assert await tokens(queue) == (100, 200)
    await queue.release(worker, [first])
    assert await tokens(queue) == (200, 100)
    await queue.nack(worker, second, 60_000, {"code": "x", "message": "y"})
    assert await tokens(queue) == (300, 0)
    await queue.cancel([second.id])
    assert await tokens(queue) == (200, 0)
    await succeed(queue, worker, await claim(queue, worker))
    assert await tokens(queue) == (0, 0)
    assert await audit(queue) == []


async def test_a_huge_estimate_counts_as_two_to_the_24(queue: Queue) -> None:
    await queue.submit([a_request(prompt_tokens=0, max_tokens=10**15 - 1), a_request()])
    assert await tokens(queue) == (2**24 + 1, 0)
    assert await audit(queue) == []


async def test_pace_is_unknown_until_a_worker_has_settled_something(queue: Queue) -> None:
    await queue.submit(some_requests(2, max_tokens=100))
    stats = await queue.stats()
    assert stats.tokens_per_s is None


async def test_pace_tells_seconds_of_work_with_no_worker_alive(queue: Queue) -> None:
    items = await claimed_by(queue, "w", 1, max_tokens=1000)
    await asyncio.sleep(0.1)  # the time that this request takes
    await succeed(queue, "w", items)
    await queue.deregister("w")
    await queue.submit(some_requests(4, max_tokens=1000))
    stats = await queue.stats()
    assert stats.tokens_per_s is not None
    assert 500 < stats.tokens_per_s <= 10_000
    assert Backlog.of("q", stats).work_s == 4000 / stats.tokens_per_s


async def test_time_without_a_request_in_flight_does_not_slow_the_pace(queue: Queue) -> None:
    items = await claimed_by(queue, "w", 1, max_tokens=1000)
    await succeed(queue, "w", items)
    before_ms = await pace(queue, "busy_ms")
    await queue.redis.hset(queue.keys.pace, "since_ms", "1")  # settled long ago
    await queue.submit(some_requests(1, max_tokens=1000))
    await succeed(queue, "w", await claim(queue, "w"))
    assert await pace(queue, "tokens") == 2000
    assert before_ms <= await pace(queue, "busy_ms") < before_ms + 1000


async def test_pace_forgets_half_after_a_minute_of_work(queue: Queue) -> None:
    items = await claimed_by(queue, "w", 1, max_tokens=1000)
    await queue.redis.hset(queue.keys.pace, "tokens", "9000")
    await queue.redis.hset(queue.keys.pace, "busy_ms", "60001")
    await succeed(queue, "w", items)
    assert await pace(queue, "tokens") == 5000
    assert 30_000 <= await pace(queue, "busy_ms") < 31_000


@pytest.mark.parametrize("order", ["fair", "fcfs"])
async def test_counters_of_an_unreadable_record_of_another_version_are_true(
    queue: Queue, order: Scheduling
) -> None:
    worker = await open_worker(queue)
    await queue.register(worker, {}, SchedulingPolicy(order))
    await queue.submit(
        [a_request("bad", tenant="acme", prompt_tokens=5, max_tokens=100), a_request("good")]
    )
    key = queue.keys.request("bad")
    record: Any = await queue.redis.get(key)
    await queue.redis.set(key, b"2" + record[1:])
    assert len(await claim(queue, worker)) == 1
    assert await queue.tenants.load("acme") == (0, 0)
    assert await audit(queue) == []


async def test_an_empty_queue_has_no_tokens_and_no_bytes_whatever_was_lost(queue: Queue) -> None:
    worker = await open_worker(queue)
    await queue.submit(some_requests(4, tenant="acme", max_tokens=1000))
    items = await claim(queue, worker)
    await queue.redis.unlink(*(queue.keys.request(item.id) for item in items))
    await queue.release(worker, items[:1])
    await queue.nack(worker, items[1], 0, ERROR)
    await succeed(queue, worker, items[2:3])
    await queue.crash(worker, {})
    found = await counters(queue)
    assert not {"in_flight", "in_flight_tokens", "queued_tokens", "bytes"} & set(found)
    assert await queue.tenants.load("acme") == (0, 0)


async def test_a_refused_request_makes_no_pace(queue: Queue) -> None:
    worker = await open_worker(queue)
    await queue.submit(some_requests(20, max_tokens=100_000))
    for _ in range(2):
        assert await fail(queue, worker, await claim(queue, worker, 10)) == [1] * 10
    assert (await queue.stats()).tokens_per_s is None
