"""Test that the device time of requests adds up to the time in which the true engine worked, and no more."""

import time
from pathlib import Path
from uuid import uuid4

import pytest
from workers import TRUE, worker_process

from gristmill.producer import Client
from gristmill.shared.connection import connect
from gristmill.shared.operations import Limits
from gristmill.shared.queue import Queue
from gristmill.shared.request import COMPLETIONS, Request
from gristmill.shared.settings import QueueSettings
from gristmill.shared.usage_ledger import Ledger, Usage

DEVICES = 1
"""A CPU counts as one."""

NUM_REQUESTS = 64

LEAST_SHARE = 0.8
"""Least part of the wall time that is charged: claims, acks and polls take the rest, while nothing is in the engine."""


def request(number: int) -> Request:
    """Return a request of up to 200 tokens; lengths differ, and some requests are refused."""
    body = {"prompt": [5 + number] * (1 + number), "max_tokens": 40 + 10 * (number % 16)}
    body |= {"ignore_eos": True, "temperature": -1 if number % 16 == 7 else 0}
    return Request.from_body(body, endpoint=COMPLETIONS, id=f"r-{uuid4().hex}", tenant="acme")


@pytest.mark.long
async def test_device_time_adds_up_to_wall_time_times_devices(
    redis_url: str, argv: list[str], tmp_path: Path
) -> None:
    queue = Queue(connect(redis_url), f"test-{uuid4().hex[:12]}", Limits(lease_ms=10_000))
    async with (
        worker_process(TRUE, redis_url, queue, tmp_path / "log", ["--", *argv]),
        Client(QueueSettings(), queue=queue) as client,
    ):
        await client.wait(await client.submit(request(0)))  # the first one warms up
        for _ in range(2):  # the engine is idle between the rounds
            earlier = await used(queue)
            began_s = time.monotonic()
            ids = await client.submit_many([request(number) for number in range(NUM_REQUESTS)])
            results = [await client.wait(each) for each in ids]
            wall_ms = (time.monotonic() - began_s) * 1000
            charged_ms = sum(result.device_ms for result in results)
            assert charged_ms == (await used(queue)).device_ms - earlier.device_ms
            assert all(result.device_ms > 0 for result in results if result.is_success)
            assert LEAST_SHARE <= charged_ms / (wall_ms * DEVICES) <= 1.0, (charged_ms, wall_ms)
    await queue.redis.aclose()


async def used(queue: Queue) -> Usage:
    """Return what the ledger says of all requests."""
    ledger = Ledger(queue)
    today = await ledger.today()
    return Usage.total(row.usage for row in await ledger.rows(today.replace(day=1), today))
