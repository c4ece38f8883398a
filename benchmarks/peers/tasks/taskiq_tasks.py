"""taskiq: a list that loses the tasks of a dead worker.

With `SAFE`, a stream that redelivers them after 10 s.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from marks import gated_async
from taskiq_redis import ListQueueBroker, RedisAsyncResultBackend, RedisStreamBroker

URL = os.environ["PEER_URL"]
made = (
    RedisStreamBroker(f"{URL}/0", consumer_id="0", idle_timeout=10_000)
    if "SAFE" in os.environ
    else ListQueueBroker(f"{URL}/0")
)
broker = made.with_result_backend(RedisAsyncResultBackend(f"{URL}/1"))


@broker.task
async def noop(number: int) -> int:
    return number


@broker.task
async def slow(number: int) -> None:
    await gated_async(number)


@asynccontextmanager
async def opened() -> AsyncIterator[None]:
    await broker.startup()
    yield
    await broker.shutdown()


async def submit(number: int) -> None:
    for i in range(number):
        await noop.kiq(i)


async def answer() -> None:
    task = await noop.kiq(0)
    await task.wait_result(check_interval=0.005, timeout=60)


async def submit_slow(number: int) -> None:
    for i in range(number):
        await slow.kiq(i)
