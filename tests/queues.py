"""Steps that the tests of the queue share: short names for what producers and workers do."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any
from uuid import uuid4

from gristmill.shared.connection import connect
from gristmill.shared.keys import DirectoryKeys
from gristmill.shared.operations import ClaimTerms, Limits, Settlement, SuspectRoom, Use
from gristmill.shared.queue import Queue
from gristmill.shared.records import Claimed
from gristmill.shared.redis_types import AnyRedis
from gristmill.shared.request import COMPLETIONS, Request
from gristmill.shared.results import response_outcome

BODY = b'{"prompt":"hi"}'
ERROR = {"code": "engine_error", "message": "boom"}

_numbers = count(1)


@asynccontextmanager
async def fresh_queue(redis_url: str, limits: Limits | None = None) -> AsyncIterator[Queue]:
    """Open a queue that nobody has used, and a directory without tenants, for the length of a block."""
    redis = connect(redis_url)
    try:
        await clear_directory(redis)
        yield Queue(redis, f"test-{uuid4().hex[:12]}", limits)
        await clear_directory(redis)
    finally:
        await redis.aclose()


async def clear_directory(redis: AnyRedis) -> None:
    """Delete the tenants, which all queues of a server share."""
    if keys := [key async for key in redis.scan_iter(match=DirectoryKeys.pattern, count=10_000)]:
        await redis.unlink(*keys)


def a_request(request_id: str | None = None, **fields: Any) -> Request:
    """Return a small request."""
    request_id = request_id or f"r-{next(_numbers)}"
    return Request(**({"id": request_id, "body": BODY, "endpoint": COMPLETIONS} | fields))


def some_requests(number: int, **fields: Any) -> list[Request]:
    return [a_request(**fields) for _ in range(number)]


async def open_worker(queue: Queue, name: str = "") -> str:
    """Register a worker and return its name."""
    name = name or f"w-{next(_numbers)}"
    await queue.register(name, {"model": "m"})
    return name


async def claim(
    queue: Queue,
    worker: str,
    number: int = 128,
    max_suspects: int = 1,
    has_suspects: bool = False,
    **options: Any,
) -> list[Claimed]:
    """Claim under a fresh nonce."""
    room = SuspectRoom(max_suspects, has_suspects)
    claim = await queue.claim(worker, uuid4().hex, number, ClaimTerms(suspects=room, **options))
    return list(claim.claimed)


async def claimed_by(queue: Queue, worker: str, number: int = 1, **fields: Any) -> list[Claimed]:
    """Submit fresh requests and return them as a worker's claim."""
    await queue.submit(some_requests(number, **fields))
    return await claim(queue, await open_worker(queue, worker), number)


def outcome(item: Claimed) -> bytes:
    return response_outcome(item.attempt, "w", 200, b"{}", b'{"model":"m"}')


def settlement(item: Claimed, status: Any = "succeeded") -> Settlement:
    usage = Use(item.record.tenant, "m")
    return Settlement(item.id, item.delivery, status, outcome(item), usage=usage, fence=item.fence)


async def succeed(queue: Queue, worker: str, items: Iterable[Claimed]) -> list[int]:
    return await queue.ack(worker, [settlement(item) for item in items])


async def fail(queue: Queue, worker: str, items: Iterable[Claimed]) -> list[int]:
    return await queue.ack(worker, [settlement(item, "failed") for item in items])


async def end_lease(queue: Queue, worker: str) -> None:
    """Let a worker's lease end now."""
    await queue.redis.zadd(queue.keys.workers, {worker: 1}, xx=True)


async def make_due(queue: Queue, request_id: str) -> None:
    """Let a delayed request be due now."""
    await queue.redis.zadd(queue.keys.delayed, {request_id: 1}, xx=True)


async def reap_all(queue: Queue) -> int:
    """Reap until nothing is left to reap; return how many ids moved."""
    moved = 0
    while reaped := await queue.reap():
        moved += sum(reaped.values())
    return moved


async def die(queue: Queue, worker: str) -> None:
    """Let a worker die and be reaped."""
    await end_lease(queue, worker)
    await reap_all(queue)


async def contents(queue: Queue) -> dict[str, Any]:
    """Return every key of a queue with its value, without what only counts refusals or beats."""
    readers: dict[str, Any] = {
        "string": queue.redis.get,
        "list": lambda key: queue.redis.lrange(key, 0, -1),
        "hash": queue.redis.hgetall,
        "zset": lambda key: queue.redis.zrange(key, 0, -1, withscores=True),
        "stream": queue.redis.xrange,
    }
    found = {}
    async for key in queue.redis.scan_iter(match=queue.keys.pattern, count=1000):
        if key.decode() == queue.keys.view:  # it lives for a lease, and may end at any moment
            continue
        kind: Any = await queue.redis.type(key)
        found[key.decode()] = await readers[kind.decode()](key)
    found.pop(queue.keys.times, None)
    found.get(queue.keys.stats, {}).pop(b"stale", None)
    return found


async def kinds_of_keys(queue: Queue) -> set[str]:
    """Return the first word of every key of a queue."""
    return {key.removeprefix(queue.keys.prefix).split(":")[0] for key in await contents(queue)}


async def counters(queue: Queue) -> dict[str, int]:
    return {name: value for name, value in (await queue.stats()).counters.items() if value}
