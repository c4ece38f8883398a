"""Measure what a claim costs under each scheduling policy, compared with `fcfs`.

    python benchmarks/claim_cost.py --tenants 1000 --rounds 5

A thousand tenants have twenty requests each, and in a second table one each. Claims of 64 take all
of them. Redis's time is that of its scripts (`INFO commandstats`), which other load on the machine
changes little. The whole call is the time that a worker waits. The policies take turns on one
server.
"""

import argparse
import asyncio
import random
import statistics
import time
from typing import get_args

from queue_ops import CLAIM, SUBMIT

from gristmill.local.redis_server import running_server
from gristmill.shared.connection import connect
from gristmill.shared.operations import Limits, Scheduling, SchedulingPolicy
from gristmill.shared.queue import Queue
from gristmill.shared.request import Request

WORKER = "gristmill-worker-5d4f9c7b84-x7k2p-01K2ZV7Q3M8T5R9W1X4Y6B0CDE"
"""Name with the length that a worker's name has in a pod."""

BODY = b'{"prompt":"' + b"x" * 1000 + b'"}'


def some_requests(tenants: int, each: int) -> list[Request]:
    chance = random.Random(5)
    requests = [
        Request(
            body=BODY,
            id=f"0-{number:024d}",
            tenant=f"tenant-{number % tenants}",
            prompt_tokens=250,
            max_tokens=chance.randrange(16, 1024),
            deadline_s=chance.randrange(3600, 86_400),
            prefix=f"{number % 32:08x}",
        )
        for number in range(tenants * each)
    ]
    chance.shuffle(requests)
    return requests


async def script_us(queue: Queue) -> float:
    stats = await queue.redis.info("commandstats")
    return float(stats.get("cmdstat_evalsha", {"usec": 0})["usec"])


async def claim_us(
    queue: Queue, scheduling: Scheduling, requests: list[Request]
) -> tuple[float, float]:
    """Claim all requests.

    Return microseconds per request, of Redis's scripts and of the whole calls.
    """
    await queue.redis.flushdb()
    await queue.register(WORKER, {"device": "none"}, SchedulingPolicy(scheduling))
    for start in range(0, len(requests), SUBMIT):
        await queue.submit(requests[start : start + SUBMIT])
    before, num_claimed = await script_us(queue), 0
    started_s = time.perf_counter()
    while num_claimed < len(requests):
        num_claimed += len((await queue.claim(WORKER, str(num_claimed), CLAIM)).claimed)
    whole_us = (time.perf_counter() - started_s) * 1e6
    return (await script_us(queue) - before) / len(requests), whole_us / len(requests)


async def measure(url: str, tenants: int, each: int, rounds: int) -> None:
    redis = connect(url)
    queue = Queue(redis, "bench", Limits(lease_ms=600_000))
    requests = some_requests(tenants, each)
    policies: tuple[Scheduling, ...] = get_args(Scheduling)
    times: dict[Scheduling, list[tuple[float, float]]] = {policy: [] for policy in policies}
    for _ in range(rounds):
        for policy in policies:
            times[policy].append(await claim_us(queue, policy, requests))
    print(f"{tenants:,} tenants, {each} requests each, claims of {CLAIM}, median of {rounds}")
    print("| policy | Redis us a request | of fcfs | whole call, us a request | of fcfs |")
    print("| --- | --- | --- | --- | --- |")
    for policy in policies:
        cells = []
        for mine, base in zip(
            zip(*times[policy], strict=True), zip(*times["fcfs"], strict=True), strict=True
        ):
            ratio = statistics.median(a / b for a, b in zip(mine, base, strict=True))
            cells += [f"{statistics.median(mine):.1f}", f"{ratio:.2f}"]
        print(f"| {policy} | {' | '.join(cells)} |")
    await redis.aclose()


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what a scheduling policy costs a claim.")
    parser.add_argument("--tenants", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with running_server() as url:
        for each in (20, 1):
            asyncio.run(measure(url, options.tenants, each, options.rounds))


if __name__ == "__main__":
    main()
