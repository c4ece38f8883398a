"""Measure what a request costs Redis as the number of workers on one queue grows.

    python benchmarks/fleet.py [--workers 4,20,100,200] [--in-flight 16] [--step-ms 500]

The workers are true worker loops with stub engines, many in a process (`fleet_workers.py`). Requests have
8 to 24 output tokens. The defaults make a worker so slow (2 requests a second) that 200 of them need
less than a core of this machine, so the counts are those of a fleet that keeps up. Judge by the counts
(INFO commandstats, which counts the commands inside scripts) and by ratios of CPU time within one run.

The requests of a phase are those that began or those that ended in it, whichever are more. Each fleet goes through these phases, on one embedded Redis of its own:

- `idle`: nothing waits.
- `single`: one request at a time, for the idle fleet.
- `deep`: a backlog that all workers take from; measured once the engines are full.
- `end`: the backlog runs out, until the last request has ended.
- `trickle`: 10 requests a second.
- `bursts`: 200 requests at once, three times.
"""

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from gristmill.local.processes import die_with_parent
from gristmill.local.redis_server import running_server
from gristmill.shared.chunking import chunks
from gristmill.shared.connection import connect
from gristmill.shared.pauses import WHOLE_QUEUE
from gristmill.shared.queue import Queue
from gristmill.shared.redis_types import AnyRedis
from gristmill.shared.request import COMPLETIONS, Request

HOST = Path(__file__).with_name("fleet_workers.py")
PER_PROCESS = 50
"""Worker loops in a process; each has a heartbeat thread."""

MIN_TOKENS, MAX_TOKENS = 8, 24
IDLE_S, DEEP_S, TRICKLE_S, PAUSE_S = 12.0, 15.0, 8.0, 2.0
NUM_SINGLE, RATE, BURST, NUM_BURSTS = 20, 10, 200, 3


@contextmanager
def workers(url: str, number: int, *options: str) -> "Iterator[list[subprocess.Popen[str]]]":
    """Run worker loops in a few processes."""
    sizes = [min(PER_PROCESS, number - start) for start in range(0, number, PER_PROCESS)]
    processes = [
        subprocess.Popen(  # noqa: S603  # our own arguments
            [sys.executable, str(HOST), "--url", url, "--workers", str(size), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509  # one C call, no locks
        )
        for size in sizes
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.communicate()


@dataclass
class Reading:
    """What has happened in Redis so far."""

    at_s: float
    num_commands: int
    cpu_s: float
    num_ended: int

    @classmethod
    async def take(cls, redis: AnyRedis, queue: Queue) -> "Reading":
        stats, cpu = await redis.info("commandstats"), await redis.info("cpu")
        ended = await redis.hget(queue.keys.stats, "succeeded")
        cpu_s = cpu["used_cpu_user_main_thread"] + cpu["used_cpu_sys_main_thread"]
        num_commands = sum(each["calls"] for each in stats.values())
        return cls(time.monotonic(), num_commands, float(cpu_s), int(ended or 0))


class Fleet:
    """Workers on one queue, and the measurement of its phases."""

    def __init__(
        self, redis: AnyRedis, processes: "list[subprocess.Popen[str]]", number: int
    ) -> None:
        self.queue = Queue(redis, "default")
        self._redis = redis
        self._processes = processes
        self._number = number

    def tally(self) -> "tuple[Counter[str], list[float], Counter[str]]":
        """Return what the workers counted since the last call."""
        counts, waits_s, ended = Counter[str](), list[float](), Counter[str]()
        for process in self._processes:
            print(file=process.stdin, flush=True)
        for process in self._processes:
            told = json.loads(cast("IO[str]", process.stdout).readline())
            counts.update(told["counts"])
            waits_s += told["waits_s"]
            ended.update(told["ended"])
        return counts, waits_s, ended

    async def phase(self, name: str, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run a phase, and print a row with its cost."""
        self.tally()
        before = await Reading.take(self._redis, self.queue)
        await work()
        after = await Reading.take(self._redis, self.queue)
        counts, waits_s, ended = self.tally()
        num_ended, seconds = after.num_ended - before.num_ended, after.at_s - before.at_s
        number = max(num_ended, counts["claimed"])
        num_commands, cpu_s = after.num_commands - before.num_commands, after.cpu_s - before.cpu_s
        row = [
            str(self._number),
            name,
            f"{number / seconds:.1f}",
            *(each(amount, number, 0) for amount in (num_commands, cpu_s * 1e6)),
            *(each(counts[what], number, 2) for what in ("claims", "empty_claims")),
            f"{num_commands / seconds / self._number:.1f}",
            f"{cpu_s / seconds * 100:.2f}",
            *wait_cells(waits_s),
            spread(ended, self._number),
            str((await self._redis.info("clients"))["connected_clients"]),
        ]
        print(f"| {' | '.join(row)} |", flush=True)

    async def run(self, in_flight: int, step_ms: float) -> None:
        """Go through all phases."""
        longest_s = MAX_TOKENS * step_ms / 1000
        rate = self._number * in_flight / ((MIN_TOKENS + MAX_TOKENS) / 2 * step_ms / 1000)
        while await self._redis.zcard(self.queue.keys.workers) < self._number:
            await asyncio.sleep(0.2)
        await asyncio.sleep(PAUSE_S)
        await self.phase("idle", lambda: asyncio.sleep(IDLE_S))
        await self.phase("single", self._single)
        await self.queue.pauses.pause(
            WHOLE_QUEUE, by="fleet.py", reason="the backlog is not complete"
        )
        await self.submit(int(self._number * in_flight + rate * (longest_s + DEEP_S)))
        await self.queue.pauses.resume(WHOLE_QUEUE)
        await asyncio.sleep(longest_s)  # now ends are spread evenly over time
        await self.phase("deep", lambda: asyncio.sleep(DEEP_S))
        await self.phase("end", self._until_done)
        await self.phase("trickle", self._trickle)
        await self._until_done()
        await self.phase("bursts", self._bursts)

    async def submit(self, number: int) -> None:
        """Submit requests in calls of at most 500."""
        for sizes in chunks(range(number), 500):
            await self.queue.submit([new_request() for _ in sizes])

    async def _until_done(self) -> None:
        """Wait until nothing waits or runs."""
        fields = ["queued", "in_flight"]
        while any(int(n or 0) for n in await self._redis.hmget(self.queue.keys.stats, fields)):
            await asyncio.sleep(0.2)

    async def _single(self) -> None:
        for _ in range(NUM_SINGLE):
            await self.submit(1)
            await asyncio.sleep(1 / 3)

    async def _trickle(self) -> None:
        for _ in range(int(TRICKLE_S * RATE)):
            await self.submit(1)
            await asyncio.sleep(1 / RATE)

    async def _bursts(self) -> None:
        for _ in range(NUM_BURSTS):
            await self.submit(BURST)
            await self._until_done()


def new_request() -> Request:
    body = {
        "prompt": "some words of a prompt",
        "max_tokens": random.randint(MIN_TOKENS, MAX_TOKENS),
    }
    return Request.from_body(body, endpoint=COMPLETIONS)


def each(amount: float, number: int, digits: int) -> str:
    """Return an amount for each request; nothing without requests."""
    return f"{amount / number:.{digits}f}" if number else ""


def wait_cells(waits_s: list[float]) -> list[str]:
    """Return the median and the 99th percentile of waits in milliseconds."""
    if len(waits_s) < 2:
        return ["", ""]
    cuts = statistics.quantiles(waits_s, n=100, method="inclusive")
    return [f"{cuts[49] * 1000:.0f}", f"{cuts[98] * 1000:.0f}"]


def spread(ended: Counter[str], number: int) -> str:
    """Return the standard deviation of the requests that each worker ended, in percent of the mean."""
    if not ended:
        return ""
    numbers = [*ended.values(), *[0] * (number - len(ended))]
    return f"{statistics.pstdev(numbers) / statistics.mean(numbers) * 100:.0f}"


async def measure(number: int, in_flight: int, step_ms: float) -> None:
    options = ["--in-flight", str(in_flight), "--step-ms", str(step_ms)]
    with running_server() as url, workers(url, number, *options) as processes:
        redis = connect(url)
        await Fleet(redis, processes, number).run(in_flight, step_ms)
        await redis.aclose()


HEADER = (
    "workers", "phase", "requests/s", "commands a request", "Redis us a request", "claims a request",
    "empty claims a request", "commands/s and worker", "Redis core, %", "wait p50, ms", "wait p99, ms",
    "spread, %", "connections",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what a request costs a growing fleet.")
    parser.add_argument("--workers", default="4,20,100,200")
    parser.add_argument("--in-flight", type=int, default=16)
    parser.add_argument("--step-ms", type=float, default=500)
    options = parser.parse_args()
    print(f"| {' | '.join(HEADER)} |\n|{' --- |' * len(HEADER)}", flush=True)
    for number in options.workers.split(","):
        asyncio.run(measure(int(number), options.in_flight, options.step_ms))


if __name__ == "__main__":
    main()
