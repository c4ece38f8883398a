"""Compare claims by count with claims by tokens: preemptions and steps, in simulated time.

    PYTHONPATH=tests python benchmarks/admission.py

The claims come from a real queue, and the worker's own code decides how much to claim. The engine
is the stub engine's batch. Each step gives one token to each running sequence, and all steps cost
the same. Tokens that are computed again after a preemption cost no step, so the number of steps
favours preemptions. The results do not depend on the machine.
"""

import asyncio
import math
import random
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from simulation import SimulatedWorker, simulate
from ulid import ULID

from gristmill.local.redis_server import running_server
from gristmill.shared.connection import connect
from gristmill.shared.operations import Limits
from gristmill.shared.queue import Queue
from gristmill.shared.request import COMPLETIONS, Request
from gristmill.worker.admission.capacity import Capacity
from gristmill.worker.engine.stub_batch import StubBatch


class Load(NamedTuple):
    """Requests and the engine that runs them.

    Attributes:
        name: Name in the table.
        prompt_tokens: Tokens of each prompt.
        outputs: Output tokens of each request.
        limit: `max_tokens` of all requests; 0 gives each its number of output tokens.
        kv_cache_tokens: Tokens that the KV cache holds.
        max_num_seqs: Largest number of running sequences.
    """

    name: str
    prompt_tokens: int
    outputs: Sequence[int]
    limit: int
    kv_cache_tokens: int
    max_num_seqs: int


def lognormal(number: int, mu: float, sigma: float, most: int) -> list[int]:
    chance = random.Random(7)
    return [1 + min(most, int(chance.lognormvariate(mu, sigma))) for _ in range(number)]


LOADS = [
    Load("lognormal(5, 0.5)", 50, lognormal(1000, 5.0, 0.5, 500), 0, 3000, 64),
    Load("all of 200", 50, [200] * 1000, 0, 3000, 64),
    Load("lognormal(4, 1), limit 1,000", 50, lognormal(1000, 4.0, 1.0, 800), 1000, 6000, 64),
    Load("long prompts, lognormal(4, 0.7)", 400, lognormal(1000, 4.0, 0.7, 800), 0, 6000, 64),
    Load("lognormal(5, 0.7)", 50, lognormal(3000, 5.0, 0.7, 500), 0, 30_000, 512),
]


async def run(url: str, load: Load, *, by_tokens: bool) -> str:
    """Run a load, and return the measured columns of its row."""
    redis = connect(url)
    queue = Queue(redis, f"bench-{ULID()}", Limits(lease_ms=3_600_000))
    requests = [
        Request(
            body=str(output).encode(),  # the stub engine reads its output length here
            endpoint=COMPLETIONS,
            prompt_tokens=load.prompt_tokens,
            max_tokens=load.limit or output,
        )
        for output in load.outputs
    ]
    for start in range(0, len(requests), 500):
        await queue.submit(requests[start : start + 500])
    await queue.register("w", {"model": "m"})
    kv_cache_tokens = load.kv_cache_tokens if by_tokens else 0
    capacity = Capacity(math.ceil(1.1 * load.max_num_seqs), load.max_num_seqs, kv_cache_tokens)
    batch = StubBatch(load.max_num_seqs, load.kv_cache_tokens)
    worker = SimulatedWorker(queue, "w", capacity, batch)
    steps = await simulate([worker])
    await redis.aclose()
    num_requests = len(requests)
    num_tokens = num_requests * load.prompt_tokens + sum(load.outputs)
    return (
        f"{batch.num_preemptions / num_requests:.2f} | {batch.num_recomputed_tokens / num_tokens:.0%}"
        f" | {fmean(worker.usage):.2f} | {steps:,}"
    )


async def measure() -> None:
    print(
        "| load | prompt | cache | sequences | claims by | preemptions a request | computed again | cache used | steps |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    with running_server() as url:
        for load in LOADS:
            shape = f"{load.name} | {load.prompt_tokens} | {load.kv_cache_tokens:,} | {load.max_num_seqs}"
            for by_tokens in (False, True):
                columns = await run(url, load, by_tokens=by_tokens)
                print(f"| {shape} | {'tokens' if by_tokens else 'count'} | {columns} |", flush=True)


if __name__ == "__main__":
    asyncio.run(measure())
