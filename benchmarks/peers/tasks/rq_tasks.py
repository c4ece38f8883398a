"""RQ: one pipeline enqueues a chunk of tasks; with `SAFE`, RQ retries the task of a dead worker."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from marks import gated
from redis import Redis
from rq import Queue, Retry

SAFE = "SAFE" in os.environ
OPTIONS = {"result_ttl": 3600, "retry": Retry(max=3) if SAFE else None}
queue = Queue("default", connection=Redis.from_url(os.environ["PEER_URL"]))


def noop(number: int) -> int:
    return number


def slow(number: int) -> None:
    gated(number)


@asynccontextmanager
async def opened() -> AsyncIterator[None]:
    yield


async def submit(number: int) -> None:
    for start in range(0, number, 128):
        chunk = range(start, min(number, start + 128))
        queue.enqueue_many([Queue.prepare_data("rq_tasks.noop", (i,), **OPTIONS) for i in chunk])


async def answer() -> None:
    queue.enqueue("rq_tasks.noop", 0, **OPTIONS).latest_result(timeout=60)


async def submit_slow(number: int) -> None:
    for i in range(number):
        queue.enqueue("rq_tasks.slow", i, job_timeout=30, **OPTIONS)
