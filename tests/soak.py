"""A long run of small requests; both processes say how much memory they have on the way.

As a program: submit `number` requests to a model and read each result, the client's side of a soak.
"""

import asyncio
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
from queues import kinds_of_keys
from workers import worker_process

from gristmill.producer import Client
from gristmill.shared.audit import audit
from gristmill.shared.queue import Queue
from gristmill.shared.request import COMPLETIONS, Request

LASTING = {
    "result", "finished", "stats", "format", "pace", "usage", "times", "virtual_time", "scheduling", "tenant_output_shares", "debt",
}  # fmt: skip
"""Kinds of keys that outlive the requests; results and replies have a TTL."""

ALLOWED_GROWTH = 8 * 2**20
"""Bytes of RSS, from the second quarter of the run to the last.

An allocator keeps pages back, a few MB however long the run; what leaks grows with the requests. So 10,000 requests
find a leak of 1.3 KB a request, 100,000 one of 130 bytes.
"""


async def check_soak(
    command: Sequence[str], argv: Sequence[str], redis_url: str, queue: Queue, folder: Path,
    number: int, model: str, **environment: str,
) -> None:  # fmt: skip
    """Run `number` requests through one worker process and one client process; check what is left."""
    async with worker_process(
        command, redis_url, queue, folder / "worker", argv, **environment
    ) as worker:
        client = await asyncio.create_subprocess_exec(
            sys.executable,
            __file__,
            str(number),
            model,
            stdout=asyncio.subprocess.PIPE,
            env={"REDIS_URL": redis_url, "GRISTMILL_QUEUE": queue.keys.queue},
        )
        assert client.stdout is not None
        of_client, of_worker = [], []
        worker_now = psutil.Process(worker.process.pid)
        while line := await client.stdout.readline():
            of_client.append(int(line))
            of_worker.append(worker_now.memory_info().rss)
        assert await client.wait() == 0
        assert await worker.terminate() == 0
    check_is_flat("worker", of_worker)
    check_is_flat("client", of_client)
    counters = (await queue.stats()).counters
    assert counters["succeeded"] == number
    assert (counters["queued"], counters["in_flight"], counters["bytes"]) == (0, 0, 0)
    assert await kinds_of_keys(queue) <= LASTING
    assert await audit(queue) == []


def check_is_flat(name: str, samples: Sequence[int]) -> None:
    quarter = len(samples) // 4
    early = statistics.median(samples[quarter : 2 * quarter])
    late = statistics.median(samples[-quarter:])
    sys.stdout.write(f"{name}: {early / 2**20:.1f} MB, then {late / 2**20:.1f} MB\n")
    assert late <= early + ALLOWED_GROWTH, f"{name} grew: {samples}"


def _requests(number: int, model: str) -> Iterator[Request]:
    for i in range(number):
        body: dict[str, Any] = {"model": model, "prompt": f"number {i}", "max_tokens": 4}
        yield Request.from_body(body, endpoint=COMPLETIONS)


async def main(number: int, model: str) -> None:
    """Print the RSS in bytes at each fortieth of the way."""
    process, num_done = psutil.Process(), 0
    async with Client() as client:
        async for result in client.as_completed(_requests(number, model)):
            assert result.is_success, result
            num_done += 1
            if num_done % (number // 40) == 0:
                sys.stdout.write(f"{process.memory_info().rss}\n")
                sys.stdout.flush()
    assert num_done == number


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
