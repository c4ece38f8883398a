"""arq: `Fast` reads more jobs and polls more often.

`Safe` retries a job 10 s after its timeout of 5 s.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from arq import create_pool
from arq.connections import ArqRedis, RedisSettings
from marks import gated_async

SETTINGS = RedisSettings.from_dsn(os.environ["PEER_URL"])
pool: ArqRedis


async def noop(_: dict[str, Any], number: int) -> int:
    return number


async def slow(_: dict[str, Any], number: int) -> None:
    await gated_async(number)


class Safe:
    functions = (noop, slow)
    redis_settings = SETTINGS
    max_jobs = 100
    job_timeout = 5


class Fast:
    functions = (noop, slow)
    redis_settings = SETTINGS
    max_jobs = 100
    poll_delay = 0.01
    queue_read_limit = 500


@asynccontextmanager
async def opened() -> AsyncIterator[None]:
    global pool  # noqa: PLW0603  # arq makes its pool inside a running loop
    pool = await create_pool(SETTINGS)
    yield
    await pool.aclose()


async def submit(number: int) -> None:
    for i in range(number):
        await pool.enqueue_job("noop", i)


async def answer() -> None:
    job = await pool.enqueue_job("noop", 0)
    await job.result(timeout=60, poll_delay=0.005)


async def submit_slow(number: int) -> None:
    for i in range(number):
        await pool.enqueue_job("slow", i)
