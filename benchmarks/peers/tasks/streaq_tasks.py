"""streaQ: one pipeline enqueues many tasks.

With `SAFE`, a dead worker's task is retried after 10 s, not 60 s.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from marks import gated_async
from streaq import Worker

worker = Worker(
    redis_url=os.environ["PEER_URL"],
    queue_name="peers",
    concurrency=100,
    idle_timeout=10 if "SAFE" in os.environ else 60,
)


@worker.task
async def noop(number: int) -> int:
    return number


@worker.task
async def slow(number: int) -> None:
    await gated_async(number)


@asynccontextmanager
async def opened() -> AsyncIterator[None]:
    async with worker:
        yield


async def submit(number: int) -> None:
    for start in range(0, number, 128):
        chunk = range(start, min(number, start + 128))
        await worker.enqueue_many([noop.enqueue(i) for i in chunk])


async def answer() -> None:
    task = await noop.enqueue(0)
    await task.result(timeout=60)


async def submit_slow(number: int) -> None:
    for i in range(number):
        await slow.enqueue(i)
