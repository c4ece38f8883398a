"""Storms over a fleet on one queue: all start at once, a part is killed, Redis restarts, all restart in turn.

`GRISTMILL_FLEET=40` runs it with fewer workers: two busy cores are too slow for 200 heartbeats. The workers are those of `benchmarks/fleet_workers.py`: many true
worker loops in a process, so killing a process kills all of them at the same moment.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from faults import report
from faults.cell import BINARIES
from faults.redis_server import RedisServer

from gristmill.local.processes import die_with_parent
from gristmill.shared.audit import audit
from gristmill.shared.chunking import chunks
from gristmill.shared.connection import connect
from gristmill.shared.operations import Limits
from gristmill.shared.queue import Queue
from gristmill.shared.redis_retry import retrying
from gristmill.shared.request import COMPLETIONS, Request

HOST = Path(__file__).parents[2] / "benchmarks" / "fleet_workers.py"
NUM_WORKERS = int(os.environ.get("GRISTMILL_FLEET", "200"))
NUM_HOSTS = 4
IN_FLIGHT = 8
LEASE_S = 15.0
BEAT_S = LEASE_S / 5
SLACK_S = 4.0
"""For the machine: the processes of the test share its cores."""


class Host:
    """A process with a part of the fleet."""

    def __init__(self, url: str, step_ms: int) -> None:
        options = {
            "--url": url,
            "--workers": NUM_WORKERS // NUM_HOSTS,
            "--in-flight": IN_FLIGHT,
            "--step-ms": step_ms,
            "--lease": LEASE_S,
        }
        self.process = subprocess.Popen(
            [sys.executable, str(HOST), *(str(word) for pair in options.items() for word in pair)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            preexec_fn=die_with_parent,  # noqa: PLW1509  # one C call, no locks
        )

    async def stop(self) -> None:
        """SIGTERM, and wait for the drain."""
        self.process.terminate()
        await asyncio.to_thread(self.process.communicate)
        assert self.process.returncode == 0

    def kill(self) -> None:
        """`kill -9`."""
        self.process.kill()
        self.process.communicate()


class Storm:
    """A fleet, and its queue on a Redis that may restart."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.queue = Queue(connect(server.url), "default", Limits(lease_ms=int(LEASE_S * 1000)))
        self.hosts: list[Host] = []
        self.ids: list[str] = []

    async def start_all(self, step_ms: int) -> None:
        """Start the whole fleet at once, and wait until every worker has registered."""
        self.hosts = [Host(self.server.url, step_ms) for _ in range(NUM_HOSTS)]
        while len((await self.queue.stats()).workers) < NUM_WORKERS:
            await asyncio.sleep(0.1)

    async def submit(self, number: int, max_tokens: int) -> None:
        body = {"prompt": "storm", "max_tokens": max_tokens}
        requests = [Request.from_body(body, endpoint=COMPLETIONS) for _ in range(number)]
        for some in chunks(requests, 500):
            await self.queue.submit(some)
        self.ids += [request.id for request in requests]

    async def count(self, counter: str) -> int:
        return (await retrying(self.queue.stats)).counters.get(counter, 0)

    async def until(self, counter: str, number: int) -> float:
        """Wait until a counter has reached a number; return the seconds that it took."""
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        while await self.count(counter) < number:
            await asyncio.sleep(0.1)
        return loop.time() - started_s

    async def check_all_ended_once(self) -> None:
        await self.until("succeeded", len(self.ids))
        assert await self.count("succeeded") == len(self.ids)
        for some in chunks(self.ids, 500):
            assert {each and each.status for each in await self.queue.results(some)} == {
                "succeeded"
            }
        assert await audit(self.queue) == []


@asynccontextmanager
async def storm_on(folder: Path) -> AsyncIterator[Storm]:
    server = RedisServer(BINARIES[0], folder)
    await server.start()
    storm = Storm(server)
    try:
        yield storm
    finally:
        for host in storm.hosts:
            host.kill()
        await storm.queue.redis.aclose()
        await server.close()


@pytest.fixture
async def storm(tmp_path: Path) -> AsyncIterator[Storm]:
    async with storm_on(tmp_path) as storm:
        yield storm


@pytest.mark.long
@pytest.mark.timeout(400)
async def test_quarter_of_a_full_fleet_killed_at_once_is_claimable_in_time(storm: Storm) -> None:
    await storm.start_all(step_ms=3_600_000)
    num_held = NUM_WORKERS * IN_FLIGHT
    await storm.submit(num_held, max_tokens=1)
    await storm.until("in_flight", num_held)
    storm.hosts.pop().kill()
    seconds = await storm.until("crashed", num_held // NUM_HOSTS)
    report.note_recovery("a quarter of a fleet killed", seconds)
    assert seconds <= LEASE_S + BEAT_S + SLACK_S
    assert await audit(storm.queue) == []


@pytest.mark.long
@pytest.mark.timeout(400)
async def test_fleet_survives_a_restart_of_redis_and_a_rolling_restart(storm: Storm) -> None:
    await storm.start_all(step_ms=100)
    await storm.submit(NUM_WORKERS * IN_FLIGHT * 3, max_tokens=20)
    await storm.until("succeeded", NUM_WORKERS)
    await storm.server.restart()
    await storm.until("succeeded", NUM_WORKERS * IN_FLIGHT)
    for place, host in enumerate(storm.hosts):
        await host.stop()
        storm.hosts[place] = Host(storm.server.url, step_ms=100)
    await storm.check_all_ended_once()
