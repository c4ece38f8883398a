"""The parent of several workers: deaths, stops and drains of the parent and of its workers. Stub engines."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
from queues import fresh_queue
from workers import STUB, WorkerProcess, worker_process

from gristmill.local.redis_server import running_server
from gristmill.producer import Client
from gristmill.shared.audit import audit
from gristmill.shared.connection import connect
from gristmill.shared.operations import Limits
from gristmill.shared.queue import Queue
from gristmill.shared.request import COMPLETIONS, Request
from gristmill.worker.death_count import MAX_DEATHS

STUB_ENGINES = (sys.executable, str(Path(__file__).parents[1] / "stub_engines.py"))
NUM_ENGINES = 2

pytestmark = [
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < NUM_ENGINES, reason="one core an engine"),
    pytest.mark.timeout(120),
]


@pytest.fixture(scope="module")
def one_redis_url() -> Iterator[str]:
    with running_server() as url:
        yield url


@pytest.fixture
async def queue(one_redis_url: str) -> AsyncIterator[Queue]:
    async with fresh_queue(one_redis_url, Limits(lease_ms=1500)) as queue:
        yield queue


@pytest.fixture
async def client(queue: Queue, one_redis_url: str) -> AsyncIterator[Client]:
    async with Client(
        queue=Queue(connect(one_redis_url), queue.keys.queue, queue.limits)
    ) as client:
        yield client


@pytest.fixture
def environment(queue: Queue, one_redis_url: str, tmp_path: Path) -> dict[str, str]:
    """Return the environment of a parent whose workers die, hang and start again quickly."""
    (tmp_path / "broken").touch()
    return {
        "GRISTMILL_ENGINES": str(NUM_ENGINES),
        "GRISTMILL_BEAT_S": "0.2",
        "GRISTMILL_STALL_TIMEOUT_S": "3",
        "GRISTMILL_BACKOFF_BASE_S": "0.1",
        "GRISTMILL_BACKOFF_MAX_S": "0.2",
        "MAX_IN_FLIGHT": "20",
        "STUB_TOKEN_DELAY_S": "0.02",
        "STUB_FOLDER": str(tmp_path),
    }


class Parent:
    """A parent whose workers are all ready, and their processes."""

    def __init__(self, process: WorkerProcess) -> None:
        self.process = process

    def child(self, engine: int) -> psutil.Process:
        """Return the last started process of an engine."""
        started = [each for each in self.events("worker.started") if each["engine"] == str(engine)]
        return psutil.Process(started[-1]["pid"])

    def events(self, name: str) -> list[dict[str, Any]]:
        return self.process.events(name)

    async def metrics(self) -> str:
        status, text = await asyncio.to_thread(self.process.probe, "/metrics")
        assert status == 200
        return text

    async def until_ready(self, *engines: int) -> None:
        """Wait until exactly these engines are ready."""
        lines = {
            f'gristmill_engine_ready{{engine="{number}"}} {float(number in engines)}'
            for number in range(NUM_ENGINES)
        }
        while not lines <= set((await self.metrics()).splitlines()):
            assert self.process.process.poll() is None
            await asyncio.sleep(0.05)

    async def until_event(self, name: str) -> None:
        while not self.events(name):
            await asyncio.sleep(0.02)

    async def check_nothing_is_left(self) -> None:
        """Wait until all workers that it ever started have ended."""
        started = [each["pid"] for each in self.events("worker.started")]
        left = [psutil.Process(pid) for pid in started if psutil.pid_exists(pid)]
        assert (await asyncio.to_thread(psutil.wait_procs, left, 10))[1] == []


@pytest.fixture
async def parent(
    queue: Queue, environment: dict[str, str], one_redis_url: str, tmp_path: Path
) -> AsyncIterator[Parent]:
    log = tmp_path / "log"
    async with worker_process(STUB_ENGINES, one_redis_url, queue, log, **environment) as process:
        parent = Parent(process)
        await parent.until_ready(0, 1)
        yield parent
    await parent.check_nothing_is_left()


def prompts(number: int, max_tokens: int) -> list[Request]:
    return [
        Request.from_body({"prompt": f"word{i}", "max_tokens": max_tokens}, endpoint=COMPLETIONS)
        for i in range(number)
    ]


async def until_in_flight(queue: Queue, number: int) -> None:
    while (await queue.stats()).counters.get("in_flight", 0) < number:
        await asyncio.sleep(0.005)


async def check_all_succeeded_once(queue: Queue, client: Client, ids: list[str]) -> None:
    results = [result async for result in client.as_completed(ids)]
    assert sorted(result.id for result in results) == sorted(ids)
    assert {result.status for result in results} == {"succeeded"}
    assert (await queue.stats()).counters["succeeded"] == len(ids)
    assert await audit(queue) == []


async def test_engines_start_one_after_another_and_drain_together(
    queue: Queue, client: Client, parent: Parent, tmp_path: Path
) -> None:
    starts = sorted(
        tuple(map(float, line.split())) for line in (tmp_path / "starts").read_text().splitlines()
    )
    assert len(starts) == NUM_ENGINES
    assert all(ended <= began for (_, ended), (began, _) in pairwise(starts))
    ids = await client.submit_many(prompts(60, max_tokens=20))
    await until_in_flight(queue, 40)
    assert len((await queue.stats()).workers) == NUM_ENGINES
    assert await parent.process.terminate() == 0
    counters = (await queue.stats()).counters
    assert counters["in_flight"] == 0
    assert counters["succeeded"] >= 40
    assert counters["succeeded"] + counters["queued"] == len(ids)
    assert {each["engine"] for each in parent.events("worker.draining")} == {"0", "1"}
    assert len(parent.events("worker.draining")) == NUM_ENGINES


async def test_second_signal_ends_the_grace_period_of_all(
    queue: Queue, client: Client, parent: Parent
) -> None:
    await client.submit_many(prompts(40, max_tokens=10_000))
    await until_in_flight(queue, 40)
    parent.process.process.send_signal(signal.SIGINT)
    while len(parent.events("worker.draining")) < NUM_ENGINES:
        await asyncio.sleep(0.02)
    assert parent.process.probe("/healthz")[0] == 200
    assert await parent.process.terminate() == 0
    stats = await queue.stats()
    assert (stats.counters["in_flight"], stats.counters["queued"], stats.workers) == (0, 40, {})


async def test_killed_worker_costs_the_other_nothing_and_comes_back(
    queue: Queue, client: Client, parent: Parent
) -> None:
    victim, other = parent.child(0), parent.child(1)
    ids = await client.submit_many(prompts(200, max_tokens=50))
    await until_in_flight(queue, 40)
    victim.kill()
    await parent.until_event("worker.died")
    assert parent.process.probe("/healthz")[0] == 200
    assert 'gristmill_engine_ready{engine="1"} 1.0' in await parent.metrics()
    await check_all_succeeded_once(queue, client, ids)
    await parent.until_ready(0, 1)
    (death,) = parent.events("worker.died")
    assert (death["engine"], death["num_deaths"], death["pause_s"]) == ("0", 1, 0.0)
    assert other.is_running()
    assert parent.child(1) == other
    text = await parent.metrics()
    assert 'gristmill_worker_restarts_total{engine="0"} 1.0' in text
    assert 'gristmill_finished_requests_total{engine="1",status="succeeded"}' in text


async def test_hanging_worker_is_killed_and_started_anew(
    queue: Queue, client: Client, parent: Parent
) -> None:
    ids = await client.submit_many(prompts(100, max_tokens=50))
    await until_in_flight(queue, 40)
    parent.child(1).suspend()
    assert "gristmill_engine_ready" in await parent.metrics()
    await check_all_succeeded_once(queue, client, ids)
    await parent.until_event("worker.died")
    (death,) = parent.events("worker.died")
    assert (death["engine"], death["error"]) == ("1", "its event loop did not run")
    await parent.until_ready(0, 1)


@pytest.mark.long
async def test_workers_that_all_hang_during_a_drain_are_killed_after_the_grace_period(
    queue: Queue, client: Client, environment: dict[str, str], one_redis_url: str, tmp_path: Path
) -> None:
    environment |= {"GRISTMILL_STALL_TIMEOUT_S": "120", "GRISTMILL_DRAIN_TIMEOUT_S": "1"}
    log = tmp_path / "log"
    async with worker_process(STUB_ENGINES, one_redis_url, queue, log, **environment) as process:
        parent = Parent(process)
        await parent.until_ready(0, 1)
        ids = await client.submit_many(prompts(40, max_tokens=10_000))
        await until_in_flight(queue, 40)
        for engine in (0, 1):
            parent.child(engine).suspend()
        assert await parent.process.terminate() == 0
        assert parent.events("engines.killed")
        await parent.check_nothing_is_left()
    counters = (await queue.stats()).counters
    assert counters["in_flight"] + counters["queued"] == len(ids)


async def test_killed_parent_takes_its_workers_along_and_their_requests_come_back(
    queue: Queue, client: Client, parent: Parent, one_redis_url: str, tmp_path: Path
) -> None:
    ids = await client.submit_many(prompts(80, max_tokens=50))
    await until_in_flight(queue, 40)
    parent.child(1).suspend()  # the kernel kills a worker that cannot end itself
    parent.process.kill()
    await parent.check_nothing_is_left()
    slow = {"GRISTMILL_BEAT_S": "0.2", "STUB_TOKEN_DELAY_S": "0.002"}
    async with worker_process(STUB, one_redis_url, queue, tmp_path / "heir", **slow):
        await check_all_succeeded_once(queue, client, ids)


async def test_stopped_parent_stops_no_worker(queue: Queue, client: Client, parent: Parent) -> None:
    """It is stopped for longer than a worker may be silent, and must not take its own silence for theirs."""
    process = psutil.Process(parent.process.process.pid)
    process.suspend()
    ids = await client.submit_many(prompts(60, max_tokens=120))
    await check_all_succeeded_once(queue, client, ids)
    process.resume()
    await parent.until_ready(0, 1)
    assert await parent.process.terminate() == 0
    assert parent.events("worker.died") == []


@pytest.mark.long
async def test_engine_that_starts_no_more_is_tried_again_while_another_one_works(
    queue: Queue, client: Client, parent: Parent, tmp_path: Path
) -> None:
    (tmp_path / "broken").write_text("1")
    parent.child(1).kill()
    while len(parent.events("worker.died")) <= MAX_DEATHS:
        await asyncio.sleep(0.05)
    await check_all_succeeded_once(queue, client, await client.submit_many(prompts(5, 5)))
    assert parent.process.probe("/readyz")[0] == 200
    (tmp_path / "broken").write_text("")
    await parent.until_ready(0, 1)


@pytest.mark.parametrize("broken", [pytest.param("0 1", marks=pytest.mark.long), "1"])
async def test_engine_that_cannot_start_at_all_ends_the_parent(
    queue: Queue, environment: dict[str, str], one_redis_url: str, tmp_path: Path, broken: str
) -> None:
    await queue.submit(prompts(3, max_tokens=1))
    (tmp_path / "broken").write_text(broken)
    ended = await asyncio.to_thread(
        subprocess.run,
        STUB_ENGINES,
        env=os.environ
        | environment
        | {"REDIS_URL": one_redis_url, "GRISTMILL_QUEUE": queue.keys.queue}
        | {"GRISTMILL_HEALTH_PORT": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "the stub engine was told not to start" in ended.stdout
    assert (await queue.stats()).workers == {}
