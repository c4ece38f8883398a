"""Measure queue operations per second and Redis bytes per request, with all features on.

    python benchmarks/queue_ops.py [--requests 100000] [--repeat 3] [--server redis-server]

One client sends 1 KB requests of 8 tenants and 3 priorities in one batch to one server. A submit
has 500 requests, a claim 64, an ack 64. The table has medians; docs/performance.md shows it.
"""

import argparse
import asyncio
import random
import shutil
import statistics
import string
import time
from collections.abc import Sequence
from pathlib import Path

from gristmill.local.redis_server import running_server
from gristmill.shared.connection import connect
from gristmill.shared.operations import Limits, Settlement, Use
from gristmill.shared.queue import Queue
from gristmill.shared.records import Claimed
from gristmill.shared.request import PRIORITIES, Request
from gristmill.shared.results import response_outcome

SUBMIT, CLAIM = 500, 64
TEXT = "".join(random.Random(1).choices(string.ascii_letters, k=4096))
ANSWER = b'{"choices":[{"text":"' + TEXT[:400].encode() + b'"}],"usage":{"completion_tokens":64}}'


def a_request(number: int) -> Request:
    start = (number * 37) % 3000
    body = f'{{"prompt":"{TEXT[start : start + 1000]}","max_tokens":64}}'.encode()
    return Request(
        body=body,
        id=f"0-{number:024d}",
        tenant=f"tenant-{number % 8}",
        priority=PRIORITIES[number % 3],
        batch="batch-1",
        prompt_tokens=250,
        max_tokens=64,
    )


async def used_bytes(queue: Queue) -> int:
    return int((await queue.redis.info("memory"))["used_memory"])


async def submit_all(queue: Queue, number: int) -> float:
    """Submit all requests, and return the seconds."""
    chunks = [
        [a_request(i) for i in range(start, start + SUBMIT)] for start in range(0, number, SUBMIT)
    ]
    started_s = time.perf_counter()
    for chunk in chunks:
        await queue.submit(chunk)
    return time.perf_counter() - started_s


async def claim_all(queue: Queue, number: int) -> tuple[float, list[Claimed]]:
    """Claim all requests, and return the seconds and the claimed requests."""
    claimed: list[Claimed] = []
    started_s = time.perf_counter()
    while len(claimed) < number:
        claimed.extend((await queue.claim("worker", str(len(claimed)), CLAIM)).claimed)
    return time.perf_counter() - started_s, claimed


async def ack_all(queue: Queue, claimed: Sequence[Claimed]) -> float:
    """Ack all requests, and return the seconds."""
    settlements = [
        Settlement(
            item.id,
            item.delivery,
            "succeeded",
            response_outcome(1, "worker", 200, ANSWER),
            prompt_tokens=250,
            output_tokens=64,
            usage=Use(item.record.tenant, "my-org/my-model", 16, 1000),
        )
        for item in claimed
    ]
    started_s = time.perf_counter()
    for start in range(0, len(settlements), CLAIM):
        await queue.ack("worker", settlements[start : start + CLAIM])
    return time.perf_counter() - started_s


async def measure(url: str, number: int, repetition: int) -> tuple[float, float, float, float]:
    """Return requests submitted, claimed and acked per second, and bytes per queued request."""
    redis = connect(url)
    queue = Queue(redis, f"bench-{repetition}", Limits(lease_ms=600_000, result_ttl_ms=3_600_000))
    await queue.register("worker", {"device": "none"})
    before = await used_bytes(queue)
    submit_s = await submit_all(queue, number)
    num_bytes = (await used_bytes(queue) - before) / number
    claim_s, claimed = await claim_all(queue, number)
    ack_s = await ack_all(queue, claimed)
    await redis.flushdb()
    await redis.aclose()
    return number / submit_s, number / claim_s, number / ack_s, num_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the queue's operations.")
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--server", help="server binary to measure; default: the embedded Valkey")
    options = parser.parse_args()
    binary = Path(shutil.which(options.server) or options.server) if options.server else None
    with running_server(binary) as url:
        rows = [asyncio.run(measure(url, options.requests, i)) for i in range(options.repeat)]
    submits, claims, acks, num_bytes = (
        statistics.median(column) for column in zip(*rows, strict=True)
    )
    print(
        f"{binary.name if binary else 'embedded Valkey'}, {options.requests:,} requests of 1 KB, median of {options.repeat}"
    )
    print("| submit/s | claim/s | ack/s | bytes a queued request |\n| --- | --- | --- | --- |")
    print(f"| {submits:,.0f} | {claims:,.0f} | {acks:,.0f} | {num_bytes:,.0f} |")


if __name__ == "__main__":
    main()
