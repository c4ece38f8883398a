"""Celery: `SAFE` acknowledges late, prefetches one task per process, and redelivers after 10 s."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from celery import Celery
from marks import gated

URL = os.environ["PEER_URL"]
app = Celery("celery_tasks", broker=f"{URL}/0", backend=f"{URL}/1")
app.conf.update(broker_connection_retry_on_startup=True, worker_prefetch_multiplier=64)
if "SAFE" in os.environ:
    app.conf.update(
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        broker_transport_options={"visibility_timeout": 10},
    )


@app.task(name="noop")
def noop(number: int) -> int:
    return number


@app.task(name="slow")
def slow(number: int) -> None:
    gated(number)


@asynccontextmanager
async def opened() -> AsyncIterator[None]:
    yield


async def submit(number: int) -> None:
    for i in range(number):
        noop.delay(i)


async def answer() -> None:
    noop.delay(0).get(timeout=60)


async def submit_slow(number: int) -> None:
    for i in range(number):
        slow.delay(i)
