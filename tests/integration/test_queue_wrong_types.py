"""A key of a wrong type stops nothing: it is moved away, and audit, stats and workers name it."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from queues import ERROR, a_request, claim, die, fresh_queue, make_due, open_worker, succeed
from structlog.testing import capture_logs
from workers import local_worker, settings_for

from gristmill.producer import Client
from gristmill.shared.audit import audit
from gristmill.shared.connection import connect
from gristmill.shared.errors import WrongFormat
from gristmill.shared.key_types import TYPES, type_of
from gristmill.shared.keys import LANES
from gristmill.shared.operations import Limits, Scheduling, SchedulingPolicy
from gristmill.shared.pauses import batch_scope
from gristmill.shared.queue import Queue
from gristmill.worker.engine import StubEngine

NAMES = (
    "format", "scheduling", "pauses", "virtual_time", "tenant_weights", "tenant_output_shares", "prefix_groups",
    "attempts", "owner", "workers", "delayed", "deadlines", "dead_letters", "dead_letter_info", "batches_done",
    "doorbell", "times", "stats", "pace", "tenant_load", "inbox", "parked", "wrong_types",
    *(f"{kind}:{lane}" for kind in ("flows", "debt") for lane in LANES),
    *(f"pending:{lane}:default" for lane in ("suspect", "normal", "high")),
    *(f"{kind}:normal:default" for kind in TYPES if kind.startswith("pending_")),
    *(f"{kind}:w" for kind in ("worker", "in_flight", "admitting", "last_claim", "abort")),
    *("request:a", "result:a", "batch:b", "finished:me", "parked:batch:b"),
)  # fmt: skip
"""Every key that the life below uses."""


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[Queue]:
    async with fresh_queue(redis_url, Limits(lease_ms=60_000)) as queue:
        yield queue


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


async def spoil(queue: Queue, name: str) -> None:
    """Write a key that does not exist, with another type than the queue's."""
    kind, _, rest = name.partition(":")
    key, redis = queue.keys.of_kind(kind, rest), queue.redis
    if not await redis.exists(key):
        await (
            redis.hset(key, "x", "x") if type_of(kind, rest) == "list" else redis.rpush(key, "x")
        )


async def steps(queue: Queue, order: Scheduling) -> AsyncIterator[None]:
    """Let requests pass through every state, a step at a time, and end them all."""
    await queue.register("w", {"model": "m"}, SchedulingPolicy(order))
    yield
    await queue.submit([
        a_request("a", batch="b", reply="me", deadline_s=60, prefix="p"),
        a_request("high", priority="high"), a_request("later", delay_s=60), a_request("cancelled"),
    ])  # fmt: skip
    yield
    await queue.pauses.pause(batch_scope("b"), "me", "")
    for item in await claim(queue, "w", 1):
        await queue.nack("w", item, 0, ERROR)
    yield
    await queue.release("w", await claim(queue, "w"))
    await queue.cancel(["cancelled"])
    await queue.pauses.resume(batch_scope("b"))
    yield
    assert await claim(queue, "w")
    await queue.beat("w")
    yield
    await die(queue, "w")
    await open_worker(queue, "v")
    await make_due(queue, "later")
    yield
    await queue.expire()
    for _ in range(5):
        await succeed(queue, "v", await claim(queue, "v", max_suspects=9))
        yield
    await queue.seal("b", 1)


def order_for(name: str) -> Scheduling:
    """Return the order that uses a key."""
    kind = name.partition(":")[0]
    own: dict[str, Scheduling] = {
        "pending_sjf": "fair+sjf", "pending_deadline": "fair+deadline", "pending_prefix": "fair+prefix",
        "prefix_groups": "fair+prefix",
    }  # fmt: skip
    return own.get(kind, "fair")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("redis_url", ["server"], indirect=True)
async def test_no_request_is_lost_to_a_key_of_a_wrong_type(queue: Queue, name: str) -> None:
    """Somebody pushes to the key whenever it does not exist: before, between and after all steps."""
    await spoil(queue, name)
    async for _ in steps(queue, order_for(name)):
        await spoil(queue, name)
    ids = ("a", "high", "later", "cancelled")
    ends = [result and result.status for result in await queue.results(ids)]
    assert ends == ["succeeded", "succeeded", "succeeded", "cancelled"]
    assert {finding.kind for finding in await audit(queue)} <= {"wrong_type"}


async def test_audit_names_every_key_of_a_wrong_type(queue: Queue) -> None:
    for name in NAMES:
        await spoil(queue, name)
    findings = await audit(queue)
    assert {finding.subject for finding in findings} == {queue.keys.prefix + n for n in NAMES}
    (of_owner,) = [f.detail for f in findings if f.subject == queue.keys.owner]
    assert of_owner.startswith("it is a list and must be a hash")


async def test_moved_key_is_kept_for_a_week_and_named_until_it_is_deleted(queue: Queue) -> None:
    await queue.redis.rpush(queue.keys.delayed, "evidence")
    kept = queue.keys.wrong_type("delayed")
    assert (await queue.stats()).wrong_types == {"delayed": "list"}
    assert await queue.redis.lrange(kept, 0, -1) == [b"evidence"]
    assert 0 < await queue.redis.pttl(kept) <= 7 * 24 * 3600 * 1000
    (finding,) = await audit(queue)
    assert (finding.kind, finding.subject) == ("wrong_type", "delayed")
    assert f"{queue.keys.delayed} was a list, a wrong type, and is now {kept}" in finding.detail
    await queue.redis.delete(kept)
    assert (await queue.stats()).wrong_types == {}
    assert await audit(queue) == []


async def test_queue_of_another_format_keeps_its_keys(queue: Queue) -> None:
    await queue.redis.set(queue.keys.format, "2")
    await queue.redis.rpush(queue.keys.delayed, "of format 2")
    with pytest.raises(WrongFormat):
        await queue.stats()
    assert await queue.redis.exists(queue.keys.delayed)


async def test_many_moved_keys_are_bounded(queue: Queue) -> None:
    await queue.redis.sadd(queue.keys.wrong_types, *(f"worker:{n}" for n in range(1000)))
    await queue.redis.rpush(queue.keys.delayed, "x")
    await queue.stats()
    assert not await queue.redis.exists(queue.keys.delayed, queue.keys.wrong_type("delayed"))


async def test_worker_goes_on_and_is_not_ready_until_the_key_is_deleted(
    queue: Queue, redis_url: str
) -> None:
    settings = settings_for(redis_url, queue, beat_s=0.02)
    with capture_logs() as events:
        async with (
            Client(queue=Queue(connect(redis_url), queue.keys.queue)) as client,
            local_worker(settings, StubEngine()) as worker,
        ):
            await queue.redis.rpush(queue.keys.delayed, "x")
            assert (await client.wait(await client.submit({"prompt": "x"}))).is_success
            await until(lambda: "wrong type" in (worker.liveness.unready_reason() or ""))
            await queue.redis.delete(queue.keys.wrong_type("delayed"))
            await until(lambda: worker.liveness.unready_reason() is None)
    (event,) = [event for event in events if event["event"] == "keys.moved_away"]
    assert queue.keys.delayed in event["error"]
