"""Tokens are counted as requests are, and the pace of a queue says how long its work takes."""

import asyncio
from typing import Any

from queues import a_request, claim, claimed_by, open_worker, some_requests, succeed

from gristmill.shared.audit import audit
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
    assert stats.work_s is None


async def test_pace_tells_seconds_of_work_with_no_worker_alive(queue: Queue) -> None:
    items = await claimed_by(queue, "w", 1, max_tokens=1000)
    await asyncio.sleep(0.1)  # the time that this request takes
    await succeed(queue, "w", items)
    await queue.deregister("w")
    await queue.submit(some_requests(4, max_tokens=1000))
    stats = await queue.stats()
    assert stats.tokens_per_s is not None
    assert 500 < stats.tokens_per_s <= 10_000
    assert stats.work_s == 4000 / stats.tokens_per_s


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
