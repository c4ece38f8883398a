"""What each scheduling policy costs a claim, in Redis's own time, against first come first served.

    python benchmarks/claim_cost.py --tenants 1000 --rounds 5

A thousand tenants wait, with twenty requests each and then with one each; claims of 64 take all of it. Time is what
Redis counts for its scripts (`INFO commandstats`), policies in turns on one server, so a busy machine blurs little.
"""

import argparse
import asyncio
import random
import statistics
from typing import get_args

from queue_ops import CLAIM, SUBMIT

from gristmill.shared.connection import connect
from gristmill.shared.operations import Limits, Policy, Scheduling
from gristmill.shared.queue import Queue
from gristmill.shared.records import Request
from gristmill.shared.server import running_server

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


async def claim_us(queue: Queue, scheduling: Scheduling, requests: list[Request]) -> float:
    """Return microseconds of Redis for each request claimed."""
    await queue.redis.flushdb()
    await queue.register("worker", {"device": "none"}, Policy(scheduling))
    for start in range(0, len(requests), SUBMIT):
        await queue.submit(requests[start : start + SUBMIT])
    before, num_claimed = await script_us(queue), 0
    while num_claimed < len(requests):
        num_claimed += len((await queue.claim("worker", str(num_claimed), CLAIM)).claimed)
    return (await script_us(queue) - before) / len(requests)


async def measure(url: str, tenants: int, each: int, rounds: int) -> None:
    redis = connect(url)
    queue = Queue(redis, "bench", Limits(lease_ms=600_000))
    requests = some_requests(tenants, each)
    policies: tuple[Scheduling, ...] = get_args(Scheduling)
    times: dict[Scheduling, list[float]] = {policy: [] for policy in policies}
    for _ in range(rounds):
        for policy in policies:
            times[policy].append(await claim_us(queue, policy, requests))
    print(f"{tenants:,} tenants, {each} requests each, claims of {CLAIM}, median of {rounds}")
    print("| policy | Redis us a request | of fcfs |\n| --- | --- | --- |")
    for policy in policies:
        ratios = [mine / base for mine, base in zip(times[policy], times["fcfs"], strict=True)]
        median_us, ratio = statistics.median(times[policy]), statistics.median(ratios)
        print(f"| {policy} | {median_us:.1f} | {ratio:.2f} |")
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
