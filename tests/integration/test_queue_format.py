"""A queue that another version wrote is refused with words, never half read."""

from typing import Any

import pytest
from queues import ERROR, claimed_by, contents, open_worker, some_requests, succeed

from gristmill.shared.errors import WrongFormat
from gristmill.shared.format_check import check_format
from gristmill.shared.queue import Queue
from gristmill.shared.queue_format import FORMAT
from gristmill.shared.queue_purge import Holders, holders
from gristmill.shared.scripts import PROTOCOL, lua_text


async def test_a_new_queue_gets_the_format_of_its_first_writer(queue: Queue) -> None:
    await queue.submit(some_requests(1))
    assert await queue.redis.get(queue.keys.format) == FORMAT.encode()
    assert f'FORMAT_OF_KEYS = "{FORMAT}"' in lua_text("includes/types")
    assert PROTOCOL.partition(".")[0] == FORMAT


@pytest.mark.parametrize(
    ("format_of_queue", "words"),
    [
        ("2", "has format 2.*Upgrade this"),
        (None, "before 0.1.0.*gristmill queue purge --queue test-"),
    ],
)
async def test_a_queue_of_another_format_is_refused(
    queue: Queue, format_of_queue: str | None, words: str
) -> None:
    """88a047f wrote no format, and other keys beside `stats`."""
    await queue.redis.hset(queue.keys.stats, "submitted", "5")
    if format_of_queue:
        await queue.redis.set(queue.keys.format, format_of_queue)
    for call in (lambda: queue.submit(some_requests(1)), lambda: open_worker(queue), queue.stats):
        with pytest.raises(WrongFormat, match=words):
            await call()
    with pytest.raises(WrongFormat, match=words):
        await check_format(queue.redis, queue.keys)
    assert await queue.redis.hgetall(queue.keys.stats) == {b"submitted": b"5"}
    assert await queue.redis.exists(queue.keys.workers) == 0


async def test_looking_at_an_empty_queue_writes_nothing(queue: Queue) -> None:
    await queue.stats()
    await check_format(queue.redis, queue.keys)
    assert await queue.redis.exists(queue.keys.format) == 0


async def test_a_redis_that_lost_its_data_is_no_older_queue(queue: Queue) -> None:
    """A worker that outlives the loss acks and nacks; both count as stale and make no format."""
    items = await claimed_by(queue, "w", 2)
    async for key in queue.redis.scan_iter(match=queue.keys.pattern):
        await queue.redis.delete(key)
    assert await succeed(queue, "w", items[:1]) == [0]
    assert await queue.nack("w", items[1], 0, ERROR) == "stale"
    await open_worker(queue)
    assert await queue.submit(some_requests(1)) == ["accepted"]
    assert (await queue.stats()).counters["queued"] == 1


@pytest.mark.parametrize("format_of_queue", ["2", None])
async def test_a_queue_of_another_format_can_be_purged(
    queue: Queue, format_of_queue: str | None
) -> None:
    await queue.redis.hset(queue.keys.stats, "submitted", "5")
    if format_of_queue:
        await queue.redis.set(queue.keys.format, format_of_queue)
    assert await holders(queue) == Holders([], [], [])
    await queue.redis.zadd(queue.keys.workers, {"w": 2e12, "dead": 1})
    await queue.redis.zadd(queue.keys.producers, {"p": 2e12, "killed": 1})
    assert await holders(queue) == Holders(["w"], [], ["p"])


@pytest.mark.parametrize("verb", ["pause", "resume", "seal", "cancel", "expire", "requeue"])
async def test_no_verb_of_a_client_touches_a_queue_of_another_format(
    queue: Queue, verb: str
) -> None:
    await queue.redis.set(queue.keys.format, "2")
    await queue.redis.set(queue.keys.request("r"), b"2|x|acme|secret")
    await queue.redis.zadd(queue.keys.deadlines, {"r": 1})
    before = await contents(queue)
    operations: dict[str, Any] = {
        "pause": lambda: queue.pauses.pause("queue", "ann"),
        "resume": lambda: queue.pauses.resume("queue"),
        "seal": lambda: queue.seal("b", 1),
        "cancel": lambda: queue.cancel(["r"]),
        "expire": queue.expire,
        "requeue": lambda: queue.dead_letters.requeue("d", "r2"),
    }
    with pytest.raises(WrongFormat):
        await operations[verb]()
    assert await contents(queue) == before
