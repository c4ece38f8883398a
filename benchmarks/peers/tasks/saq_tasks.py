"""SAQ: `SAFE` retries, and looks every 5 s for jobs that exceeded their timeout."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from marks import gated_async
from saq import Queue

SAFE = "SAFE" in os.environ
OPTIONS = {"retries": 3} if SAFE else {}
queue = Queue.from_url(os.environ["PEER_URL"])


async def noop(_: dict[str, Any], *, number: int) -> int:
    return number


async def slow(_: dict[str, Any], *, number: int) -> None:
    await gated_async(number)


settings = {
    "queue": queue,
    "functions": [noop, slow],
    "concurrency": 100,
    "timers": {"sweep": 5} if SAFE else None,
}


@asynccontextmanager
async def opened() -> AsyncIterator[None]:
    await queue.connect()
    yield
    await queue.disconnect()


async def submit(number: int) -> None:
    for i in range(number):
        await queue.enqueue("noop", number=i, **OPTIONS)


async def answer() -> None:
    await queue.apply("noop", timeout=60, poll_interval=0.005, number=0, **OPTIONS)


async def submit_slow(number: int) -> None:
    for i in range(number):
        await queue.enqueue("slow", number=i, timeout=30, **OPTIONS)
