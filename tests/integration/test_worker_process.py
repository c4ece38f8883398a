"""Worker processes on the stub engine: signals, `kill -9`, probes, outages. The engine's own tests are elsewhere."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from queues import fresh_queue
from servers import port_of, process_id
from workers import STUB, WorkerProcess, worker_process

from gristmill.local.redis_server import running_server
from gristmill.producer import Client
from gristmill.shared.audit import audit
from gristmill.shared.connection import connect
from gristmill.shared.operations import Limits
from gristmill.shared.queue import Queue
from gristmill.shared.redis_retry import retrying
from gristmill.shared.request import COMPLETIONS, Request
from gristmill.shared.results import Result


@pytest.fixture
def own_redis_url() -> Iterator[str]:
    """A server of its own, for tests that stop it."""
    with running_server() as url:
        yield url


@pytest.fixture
async def queue(own_redis_url: str) -> AsyncIterator[Queue]:
    async with fresh_queue(own_redis_url, Limits(lease_ms=1500)) as queue:
        yield queue


@pytest.fixture
async def client(queue: Queue, own_redis_url: str) -> AsyncIterator[Client]:
    async with Client(
        queue=Queue(connect(own_redis_url), queue.keys.queue, queue.limits)
    ) as client:
        yield client


def prompts(number: int, max_tokens: int) -> list[Request]:
    return [
        Request.from_body({"prompt": f"word{i}", "max_tokens": max_tokens}, endpoint=COMPLETIONS)
        for i in range(number)
    ]


async def collect(client: Client, ids: list[str]) -> list[Result]:
    return [result async for result in client.as_completed(ids)]


async def until(queue: Queue, counter: str, number: int) -> None:
    while (await retrying(queue.stats)).counters.get(counter, 0) < number:
        await asyncio.sleep(0.005)


async def check_all_succeeded_once(queue: Queue, client: Client, ids: list[str]) -> None:
    results = await collect(client, ids)
    assert sorted(result.id for result in results) == sorted(ids)
    assert {result.status for result in results} == {"succeeded"}
    assert (await retrying(queue.stats)).counters["succeeded"] == len(ids)
    assert await audit(queue) == []


def beats(**environment: str) -> dict[str, str]:
    return {"GRISTMILL_BEAT_S": "0.2"} | environment


async def test_killed_worker_loses_and_doubles_nothing(
    queue: Queue, client: Client, own_redis_url: str, tmp_path: Path
) -> None:
    """Scenarios 1, 6 and 9. The victim finishes nothing, so all that it claimed is in flight when it dies."""
    slow = beats(STUB_TOKEN_DELAY_S="60", MAX_IN_FLIGHT="80")
    fast = beats(STUB_TOKEN_DELAY_S="0.02", MAX_IN_FLIGHT="80")
    ids = await client.submit_many(prompts(200, max_tokens=50))
    async with worker_process(STUB, own_redis_url, queue, tmp_path / "a", **slow) as victim:
        await until(queue, "in_flight", 80)
        async with worker_process(STUB, own_redis_url, queue, tmp_path / "b", **fast) as heir:
            await until(queue, "succeeded", 1)
            victim.kill()
            await check_all_succeeded_once(queue, client, ids)
            assert heir.process.poll() is None
    assert (await queue.stats()).counters["crashed"] == 80


async def test_only_worker_killed_and_started_anew_runs_only_what_is_left(
    queue: Queue, client: Client, own_redis_url: str, tmp_path: Path
) -> None:
    """Scenario 4."""
    ids = await client.submit_many(prompts(100, max_tokens=10))
    slow = beats(STUB_TOKEN_DELAY_S="0.01", MAX_IN_FLIGHT="20")
    async with worker_process(STUB, own_redis_url, queue, tmp_path / "a", **slow) as victim:
        await until(queue, "succeeded", 40)
        victim.kill()
    finished = (await queue.stats()).counters["succeeded"]
    async with worker_process(STUB, own_redis_url, queue, tmp_path / "b", **slow) as heir:
        await check_all_succeeded_once(queue, client, ids)
        assert len(heir.events("request.completed")) == 100 - finished
        assert await heir.terminate() == 0


async def test_sigterm_drains_and_exits_zero(
    queue: Queue, client: Client, own_redis_url: str, tmp_path: Path
) -> None:
    ids = await client.submit_many(prompts(300, max_tokens=20))
    async with worker_process(
        STUB,
        own_redis_url,
        queue,
        tmp_path / "a",
        **beats(STUB_TOKEN_DELAY_S="0.02", MAX_IN_FLIGHT="10"),
    ) as worker:
        await until(queue, "in_flight", 10)
        assert await worker.terminate() == 0
        (stopped,) = worker.events("worker.stopped")
        assert stopped["num_released"] == 0
    counters = (await queue.stats()).counters
    assert counters["in_flight"] == 0
    assert counters["succeeded"] >= 10
    assert counters["succeeded"] + counters["queued"] == len(ids)


async def test_second_signal_hurries(
    queue: Queue, client: Client, own_redis_url: str, tmp_path: Path
) -> None:
    await client.submit_many(prompts(5, max_tokens=1000))
    async with worker_process(
        STUB, own_redis_url, queue, tmp_path / "a", **beats(STUB_TOKEN_DELAY_S="1")
    ) as worker:
        await until(queue, "in_flight", 5)
        worker.process.send_signal(signal.SIGINT)
        while not worker.events("worker.draining"):
            await asyncio.sleep(0.01)
        assert worker.probe("/readyz")[0] == 503
        assert worker.probe("/healthz")[0] == 200
        assert await worker.terminate() == 0
    stats = await queue.stats()
    assert (stats.counters["in_flight"], stats.counters["queued"], stats.workers) == (0, 5, {})


async def test_redis_that_stops_answering_costs_nothing(
    queue: Queue, client: Client, own_redis_url: str, tmp_path: Path
) -> None:
    """Scenarios 7, 33 and 40: results are kept and written later; nothing is computed twice."""
    server = server_process(own_redis_url)
    ids = await client.submit_many(prompts(60, max_tokens=10))
    environment = beats(
        STUB_TOKEN_DELAY_S="0.03", MAX_IN_FLIGHT="20", GRISTMILL_SOCKET_TIMEOUT_S="2"
    )
    async with worker_process(STUB, own_redis_url, queue, tmp_path / "a", **environment) as worker:
        await until(queue, "succeeded", 5)
        server.send_signal(signal.SIGSTOP)
        while not worker.events("beat.failed"):
            await asyncio.sleep(0.05)
        assert worker.probe("/healthz")[0] == 200
        server.send_signal(signal.SIGCONT)
        await check_all_succeeded_once(queue, client, ids)
        completed = [event["id"] for event in worker.events("request.completed")]
        assert len(completed) == len(set(completed)) == 60


@pytest.mark.parametrize("sink", ["full disk", "nobody reads"])
async def test_log_that_cannot_be_written_stops_nobody(
    queue: Queue, client: Client, own_redis_url: str, tmp_path: Path, sink: str
) -> None:
    log, reader = Path("/dev/full"), None
    if sink == "nobody reads":
        log = tmp_path / "pipe"
        os.mkfifo(log)
        reader = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    ids = await client.submit_many(prompts(3000, max_tokens=1))
    async with worker_process(STUB, own_redis_url, queue, log, **beats()) as worker:
        await check_all_succeeded_once(queue, client, ids)
        assert worker.probe("/healthz")[0] == 200
        assert await worker.terminate() == 0
    if reader:
        os.close(reader)


async def test_connections_cut_again_and_again_cost_nothing(
    queue: Queue, client: Client, own_redis_url: str, tmp_path: Path
) -> None:
    """Scenario 32."""
    ids = await client.submit_many(prompts(200, max_tokens=10))
    environment = beats(STUB_TOKEN_DELAY_S="0.01", MAX_IN_FLIGHT="10")
    async with worker_process(STUB, own_redis_url, queue, tmp_path / "a", **environment):
        killer = connect(own_redis_url)
        for succeeded in range(10, 200, 10):
            await until(queue, "succeeded", succeeded)
            await killer.client_kill_filter(_type="normal", skipme=True)
        await killer.aclose()
        await check_all_succeeded_once(queue, client, ids)


async def test_probes_and_metrics_tell_the_state(
    queue: Queue, client: Client, own_redis_url: str, tmp_path: Path
) -> None:
    async with worker_process(STUB, own_redis_url, queue, tmp_path / "a", **beats()) as worker:
        await collect(client, await client.submit_many(prompts(7, max_tokens=3)))
        await metrics_with(
            worker, f'gristmill_queue_requests{{queue="{queue.keys.queue}",state="queued"}} 0.0'
        )  # after a beat
        text = await metrics_with(
            worker, 'gristmill_finished_requests_total{status="succeeded"} 7.0'
        )
    assert "gristmill_output_tokens_total 21.0" in text
    assert 'gristmill_engine_info{device="",dtype="",model="stub"' in text


async def metrics_with(worker: WorkerProcess, line: str) -> str:
    while line not in (text := (await asyncio.to_thread(worker.probe, "/metrics"))[1]):
        await asyncio.sleep(0.01)
    return text


async def test_idle_worker_of_three_leaves_the_others_alone(
    queue: Queue, client: Client, own_redis_url: str, tmp_path: Path
) -> None:
    """Scenario 35."""
    async with (
        worker_process(STUB, own_redis_url, queue, tmp_path / "a", **beats()) as first,
        worker_process(STUB, own_redis_url, queue, tmp_path / "b", **beats()) as second,
        worker_process(STUB, own_redis_url, queue, tmp_path / "c", **beats()) as third,
    ):
        assert await first.terminate() == 0
        await collect(client, await client.submit_many(prompts(50, max_tokens=3)))
        assert [w.probe("/readyz")[0] for w in (second, third)] == [200, 200]
        assert len((await queue.stats()).workers) == 2


def server_process(url: str) -> "Process":
    """Return something that can signal the server behind a URL."""
    return Process(process_id(port_of(url)))


class Process:
    """A process that somebody else started."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def send_signal(self, number: int) -> None:
        os.kill(self._pid, number)
