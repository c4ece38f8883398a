"""dramatiq: `SAFE` looks for dead workers at each call.

A worker counts as dead after 10 s, not 60 s.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend
from marks import gated

URL = os.environ["PEER_URL"]
OPTIONS = {"maintenance_chance": 1_000_000, "heartbeat_timeout": 10_000}
broker = RedisBroker(url=f"{URL}/0", **(OPTIONS if "SAFE" in os.environ else {}))
broker.add_middleware(Results(backend=RedisBackend(url=f"{URL}/1")))
dramatiq.set_broker(broker)


@dramatiq.actor(store_results=True)
def noop(number: int) -> int:
    return number


@dramatiq.actor
def slow(number: int) -> None:
    gated(number)


@asynccontextmanager
async def opened() -> AsyncIterator[None]:
    yield


async def submit(number: int) -> None:
    for i in range(number):
        noop.send(i)


async def answer() -> None:
    noop.send(0).get_result(block=True, timeout=60_000)


async def submit_slow(number: int) -> None:
    for i in range(number):
        slow.send(i)
