"""Measure requests per second and idle latency with an engine that answers at once.

    python benchmarks/end_to_end.py [--requests 20000] [--repeat 3]

There are one server, one worker process and one client process (this one). The worker has the stub
engine and writes its log.

- `drain` starts the worker on a full queue and counts from the first result that it sees.
- `end to end` submits and waits for results at the same time.
- `idle` sends one request at a time. `submit to claim` is the queue's wait, `submit to result` the
  whole call.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson

from gristmill.local.processes import die_with_parent
from gristmill.local.redis_server import running_server
from gristmill.producer import Client
from gristmill.shared.connection import connect
from gristmill.shared.queue import Queue
from gristmill.shared.request import COMPLETIONS, Request

STUB_WORKER = Path(__file__).resolve().parent.parent / "tests" / "stub_worker.py"
NUM_IDLE = 200


@contextmanager
def worker(url: str, log: Path) -> Iterator[None]:
    """Run a worker process around the stub engine."""
    environment = os.environ | {
        "REDIS_URL": url,
        "GRISTMILL_HEALTH_PORT": "0",
        "MAX_IN_FLIGHT": "512",
    }
    with log.open("ab") as output:
        process = subprocess.Popen(  # noqa: S603  # our own arguments
            [sys.executable, str(STUB_WORKER)],
            env=environment,
            stdout=output,
            preexec_fn=die_with_parent,  # noqa: PLW1509  # one C call, no locks
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def requests(number: int) -> list[Request]:
    return [
        Request.from_body({"prompt": f"word{i}", "max_tokens": 1}, endpoint=COMPLETIONS)
        for i in range(number)
    ]


async def drained(client: Client, queue: Queue, url: str, number: int, log: Path) -> float:
    """Return the requests per second of a worker that starts on a full queue."""
    await client.submit_many(requests(number))
    with worker(url, log):
        first = await until(queue, 1)
        started_s = time.perf_counter()
        await until(queue, number)
        return (number - first) / (time.perf_counter() - started_s)


async def until(queue: Queue, number: int) -> int:
    """Wait until at least this number of requests succeeded, and return their number."""
    while (done := (await queue.stats()).counters.get("succeeded", 0)) < number:
        await asyncio.sleep(0.02)
    return done


async def end_to_end(client: Client, number: int) -> float:
    """Return requests per second of a client that submits and waits at the same time."""
    items = requests(number)
    started_s = time.perf_counter()
    count = 0
    async for _ in client.as_completed(items):
        count += 1
    return count / (time.perf_counter() - started_s)


async def idle(client: Client, log: Path) -> tuple[float, float]:
    """Return the median milliseconds from submit to claim, and from submit to result."""
    to_result = []
    for item in requests(NUM_IDLE):
        started_s = time.perf_counter()
        await client.submit(item)
        await client.wait(item.id)
        to_result.append((time.perf_counter() - started_s) * 1000)
    lines = [orjson.loads(line) for line in log.read_bytes().splitlines()]
    waits = [line["queue_wait_s"] * 1000 for line in lines if line["event"] == "request.completed"][
        -NUM_IDLE:
    ]
    return statistics.median(waits), statistics.median(to_result)


async def measure(number: int, log: Path) -> tuple[float, float, float, float]:
    with running_server() as url:
        redis = connect(url)
        queue = Queue(redis)
        async with Client(queue=Queue(connect(url))) as client:
            drain = await drained(client, queue, url, number, log)
            with worker(url, log):
                await client.wait(await client.submit(requests(1)[0]))
                both = await end_to_end(client, number)
                waits = await idle(client, log)
        await redis.aclose()
    return drain, both, *waits


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure requests a second end to end.")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        rows = [
            asyncio.run(measure(options.requests, Path(folder) / f"log{i}"))
            for i in range(options.repeat)
        ]
    drain, both, to_engine, to_result = (
        statistics.median(column) for column in zip(*rows, strict=True)
    )
    print(
        f"stub engine, {options.requests:,} requests, one worker, one client, median of {options.repeat}"
    )
    print(
        "| drain/s | end to end/s | idle: submit to claim, ms | submit to result, ms |\n| --- | --- | --- | --- |"
    )
    print(f"| {drain:,.0f} | {both:,.0f} | {to_engine:.1f} | {to_result:.1f} |")


if __name__ == "__main__":
    main()
