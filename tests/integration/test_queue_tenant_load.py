"""What each tenant has in the queue: right after every way in and out, and gone when nothing is there."""

from typing import Any

from queues import (
    ERROR,
    a_request,
    claim,
    claimed_by,
    die,
    fail,
    make_due,
    open_worker,
    some_requests,
    succeed,
)

from gristmill.shared.queue import Queue


async def sizes(queue: Queue, *ids: str) -> int:
    return sum([await queue.redis.strlen(queue.keys.request(request_id)) for request_id in ids])


async def test_each_tenant_has_its_own_requests_and_bytes(queue: Queue) -> None:
    await queue.submit(
        [a_request("a1", tenant="a"), a_request("a2", tenant="a", body=b'{"prompt":"long"}')]
    )
    await queue.submit([a_request("b1", tenant="b")] * 2)
    assert await queue.tenants.load("a") == (2, await sizes(queue, "a1", "a2"))
    assert await queue.tenants.load("b") == (1, await sizes(queue, "b1"))
    assert await queue.tenants.load("nobody") == (0, 0)
    await queue.submit([a_request("a1", tenant="a")])
    assert (await queue.tenants.load("a"))[0] == 2


async def test_a_request_weighs_until_it_ends_however_it_ends(queue: Queue) -> None:
    items = await claimed_by(queue, "w", 6, tenant="a")
    await queue.submit(
        [a_request("late", tenant="a", delay_s=60), a_request("dead", tenant="a", max_attempts=1)]
    )
    assert (await queue.tenants.load("a"))[0] == 8
    await queue.release("w", items[:1])
    await queue.nack("w", items[1], 1000, ERROR)
    assert (await queue.tenants.load("a"))[0] == 8
    await succeed(queue, "w", items[2:3])
    await fail(queue, "w", items[3:4])
    await queue.cancel([items[4].id, items[5].id, "late"])
    assert (await queue.tenants.load("a"))[0] == 3
    await die(queue, "w")
    await make_due(queue, items[1].id)
    worker = await open_worker(queue, "w2")
    for item in await claim(queue, worker):
        if item.id == "dead":
            await queue.nack(worker, item, 0, ERROR)
        else:
            await succeed(queue, worker, [item])
    assert await queue.tenants.load("a") == (0, 0)
    assert await queue.dead_letters.requeue("dead", "again") == "accepted"
    assert await queue.tenants.load("a") == (1, await sizes(queue, "again"))
    await queue.cancel(["again"])
    assert not await queue.redis.exists(queue.keys.tenant_load)


async def test_what_expires_weighs_no_more(queue: Queue) -> None:
    await queue.submit(some_requests(3, tenant="a", deadline_s=3600))
    ids: Any = await queue.redis.zrange(queue.keys.deadlines, 0, -1)
    await queue.redis.zadd(queue.keys.deadlines, dict.fromkeys(ids, 1))
    assert await queue.expire() == 3
    assert await queue.tenants.load("a") == (0, 0)


async def test_requests_of_a_version_that_did_not_count_leave_nothing_negative(
    queue: Queue,
) -> None:
    await queue.submit(some_requests(3, tenant="a"))
    await queue.redis.delete(queue.keys.tenant_load)
    items = await claim(queue, await open_worker(queue, "w"))
    await queue.submit(some_requests(1, tenant="a"))
    await succeed(queue, "w", items)
    assert await queue.tenants.load("a") == (0, 0)
