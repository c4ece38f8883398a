"""The audit: silent about a sound queue, also a busy one, and never about a broken one."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from queues import a_request, claim, claimed_by, die, open_worker, some_requests, succeed
from servers import ask_all, with_user

from gristmill.shared.audit import audit
from gristmill.shared.connection import connect
from gristmill.shared.queue import Queue

Sabotage = Callable[[Queue, str], Awaitable[object]]


def key(queue: Queue, name: str) -> str:
    return queue.keys.prefix + name


SABOTAGE: dict[str, tuple[Sabotage, set[str]]] = {
    "entry lost": (lambda q, _: q.redis.delete(key(q, "pending:normal:default")), {"lost"}),
    "owner lost": (
        lambda q, held: q.redis.hdel(q.keys.owner, held),
        {"owner_mismatch", "counter_mismatch"},
    ),
    "held by two": (
        lambda q, held: q.redis.hset(q.keys.in_flight("w2"), held, "9"),
        {"owner_mismatch", "no_lease", "counter_mismatch"},
    ),
    "held and delayed": (lambda q, held: q.redis.zadd(q.keys.delayed, {held: 1}), {"two_places"}),
    "two records": (
        lambda q, held: q.redis.set(q.keys.result(held), "{}"),
        {"two_records", "counter_mismatch"},
    ),
    "request lost": (
        lambda q, held: q.redis.delete(q.keys.request(held)),
        {"no_record", "counter_mismatch"},
    ),
    "second entry": (
        lambda q, held: q.redis.rpush(key(q, "pending:normal:default"), held),
        {"second_entry"},
    ),
    "flow out of its lane": (
        lambda q, _: q.redis.delete(key(q, "flows:normal")),
        {"unserved_lane"},
    ),
    "unknown lane": (
        lambda q, _: q.redis.rpush(key(q, "pending:urgent:default"), "x"),
        {"unserved_lane"},
    ),
    "lease lost": (lambda q, _: q.redis.zrem(q.keys.workers, "w"), {"no_lease"}),
    "inbox of nobody": (lambda q, _: q.redis.hset(key(q, "admitting:x"), "1", "{}"), {"no_lease"}),
    "deadline left": (lambda q, _: q.redis.zadd(q.keys.deadlines, {"x": 1}), {"leftover"}),
    "attempts left": (lambda q, _: q.redis.hset(q.keys.attempts, "x", "1|0|0"), {"leftover"}),
    "delay left": (lambda q, _: q.redis.zadd(q.keys.delayed, {"x": 1}), {"leftover"}),
    "letter lost": (lambda q, _: q.redis.zadd(q.keys.dead_letters, {"x": 1}), {"dead_mismatch"}),
    "queued miscounted": (
        lambda q, _: q.redis.hincrby(q.keys.stats, "queued", 1),
        {"counter_mismatch"},
    ),
    "bytes miscounted": (
        lambda q, _: q.redis.hincrby(q.keys.stats, "bytes", 1),
        {"counter_mismatch"},
    ),
    "tenant miscounted": (
        lambda q, _: q.redis.hincrby(q.keys.tenant_load, "default|requests", 1),
        {"counter_mismatch"},
    ),
    "result nobody counted": (
        lambda q, _: q.redis.set(q.keys.result("x"), "{}"),
        {"counter_mismatch"},
    ),
}


@pytest.mark.parametrize("name", SABOTAGE)
async def test_audit_finds_what_is_broken(queue: Queue, name: str) -> None:
    (held,) = await claimed_by(queue, "w")
    await queue.submit([a_request("waits")])
    assert await audit(queue) == []
    sabotage, kinds = SABOTAGE[name]
    await sabotage(queue, held.id)
    findings = await audit(queue)
    assert {finding.kind for finding in findings} == kinds
    assert all(finding.subject and finding.detail for finding in findings)
    assert all(finding.is_harmless == (finding.kind == "second_entry") for finding in findings)


async def test_audit_of_a_queue_that_never_was_is_clean(queue: Queue) -> None:
    assert await audit(queue) == []


async def test_audit_reads_only(queue: Queue, any_redis_url: str) -> None:
    await claimed_by(queue, "w", 3)
    rights = "on nopass ~gm:* +@read +@connection +cluster|slots +evalsha +script|load"
    ask_all(any_redis_url, "ACL", "SETUSER", "reader", *rights.split())
    reader = Queue(connect(with_user(any_redis_url, "reader", "x")), queue.keys.queue)
    assert await audit(reader) == []
    await reader.redis.aclose()


async def test_audit_of_a_busy_queue_reports_nothing_that_only_moved(queue: Queue) -> None:
    """Producers and workers go on while it walks; every finding would be a false alarm."""
    stop = asyncio.Event()
    busy = [asyncio.create_task(_work(queue, stop, number)) for number in range(3)]
    findings = [await audit(queue) for _ in range(5)]
    stop.set()
    await asyncio.gather(*busy)
    assert findings == [[]] * 5
    assert await audit(queue) == []


async def _work(queue: Queue, stop: asyncio.Event, number: int) -> None:
    worker = await open_worker(queue)
    while not stop.is_set():
        await queue.submit(some_requests(16, tenant=f"t{number}"))
        items = await claim(queue, worker, 48, max_suspects=48)
        await queue.release(worker, items[:4])
        await queue.cancel([item.id for item in items[4:8]])
        await succeed(queue, worker, items[8:-2])
        if len(items) > 40:
            await die(queue, worker)
            worker = await open_worker(queue)
        else:
            await succeed(queue, worker, items[-2:])
