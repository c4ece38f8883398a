"""Workers that end when their queue is empty: what counts as empty, and whom they wait for. Stub engines."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from command_line import CommandLine, ended
from queues import a_request, claimed_by, end_lease, fresh_queue, open_worker
from redis.exceptions import ResponseError
from stewards import TRUE, opened, steward_process
from workers import STUB, WorkerProcess, worker_process

from gristmill.local.processes import die_with_parent
from gristmill.local.redis_server import running_server
from gristmill.producer import Client, SyncClient
from gristmill.shared.audit import audit
from gristmill.shared.connection import connect
from gristmill.shared.operations import Limits
from gristmill.shared.pauses import WHOLE_QUEUE, batch_scope
from gristmill.shared.producer_leases import ProducerLeases
from gristmill.shared.queue import Queue
from gristmill.shared.redis_types import AnyRedis
from gristmill.shared.request import COMPLETIONS, Request
from gristmill.shared.settings import QueueSettings

TESTS = Path(__file__).parents[1]
STUB_ENGINES = (sys.executable, str(TESTS / "stub_engines.py"))
LEASE_MS = 3_000
PRODUCER_LEASE_S = "0.5"
"""Lease of a worker in the settings of the killed producer, whose own lease is four times as long."""

UNTIL_EMPTY = {"GRISTMILL_UNTIL_EMPTY": "true", "GRISTMILL_BEAT_S": "0.2"}

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def one_redis_url() -> Iterator[str]:
    with running_server() as url:
        yield url


@pytest.fixture
async def queue(one_redis_url: str) -> AsyncIterator[Queue]:
    async with fresh_queue(one_redis_url, Limits(lease_ms=LEASE_MS)) as queue:
        yield queue


@pytest.fixture
async def client(queue: Queue, one_redis_url: str) -> AsyncIterator[Client]:
    own = Queue(connect(one_redis_url), queue.keys.queue, queue.limits)
    async with Client(queue=own) as client:
        yield client


def prompts(number: int, max_tokens: int = 4) -> list[Request]:
    return [
        Request.from_body({"prompt": f"word{i}", "max_tokens": max_tokens}, endpoint=COMPLETIONS)
        for i in range(number)
    ]


@asynccontextmanager
async def worker(
    url: str, queue: Queue, log: Path, **environment: str
) -> AsyncIterator[WorkerProcess]:
    async with worker_process(STUB, url, queue, log, **UNTIL_EMPTY, **environment) as process:
        yield process


async def exit_code(process: WorkerProcess) -> int:
    return await asyncio.to_thread(process.process.wait)


def reasons(process: WorkerProcess) -> list[str]:
    return [each["reason"] for each in process.events("worker.draining")]


async def until(queue: Queue, counter: str, number: int) -> None:
    while (await queue.stats()).counters.get(counter, 0) < number:
        await asyncio.sleep(0.01)


async def lease_end_ms(redis: AnyRedis, key: str) -> float:
    """Return the latest end of the leases in a ZSET, 0 without any."""
    leases: Any = await redis.zrange(key, 0, -1, withscores=True)
    return max((score for _, score in leases), default=0.0)


async def until_renewed(redis: AnyRedis, key: str, times: int) -> None:
    """Wait until leases in a ZSET were renewed so often."""
    for _ in range(times):
        before_ms = await lease_end_ms(redis, key)
        while await lease_end_ms(redis, key) <= before_ms:
            await asyncio.sleep(0.01)


# -- what is empty ------------------------------------------------------------------------------------


async def test_whatever_may_still_run_is_not_empty(queue: Queue) -> None:
    assert (await queue.stats()).is_done
    await queue.submit([a_request("delayed", delay_s=60)])
    assert not (await queue.stats()).is_done
    await queue.cancel(["delayed"])
    await queue.redis.rpush(queue.keys.inbox, b'{"prompt":"x"}')
    assert not (await queue.stats()).is_done
    worker = await open_worker(queue)
    ((token, _),) = (await queue.claim(worker, "n", 1)).inbox  # taken, and no request yet
    assert not (await queue.stats()).is_done
    await queue.admit(worker, token, a_request("admitted"))
    await queue.cancel(["admitted"])
    assert (await queue.stats()).is_done
    await claimed_by(queue, "dead")
    await end_lease(queue, "dead")
    assert not (await queue.stats()).is_done


async def test_paused_requests_are_not_empty(queue: Queue) -> None:
    await queue.pauses.pause(batch_scope("b"), "test")
    await queue.submit([a_request("parked", batch="b")])
    assert not (await queue.claim(await open_worker(queue), "n", 1)).claimed
    stats = await queue.stats()
    assert (stats.is_done, stats.num_paused) == (False, 1)
    await queue.cancel(["parked"])
    await queue.pauses.pause(WHOLE_QUEUE, "test")
    assert (await queue.stats()).is_done
    await queue.submit([a_request()])
    assert not (await queue.stats()).is_done


# -- the lease of a producer --------------------------------------------------------------------------


async def test_lease_is_held_from_the_first_chunk_until_the_input_is_read(
    queue: Queue, client: Client
) -> None:
    seen = []

    async def bodies() -> AsyncIterator[Request]:
        for request in prompts(300):
            seen.append(len((await queue.stats()).producers))
            yield request

    await client.submit_many(bodies())
    assert (seen[0], seen[-1]) == (0, 1)
    await client.aclose()
    assert (await queue.stats()).producers == {}


async def test_a_lease_that_is_too_long_is_refused_and_leaves_nothing(queue: Queue) -> None:
    leases = ProducerLeases(queue.scripts, 10**24)
    with pytest.raises(ResponseError, match="INVALID"):
        await leases.hold("p")
    assert await queue.redis.exists(queue.keys.producers) == 0


async def test_calls_of_one_client_share_a_lease(queue: Queue, client: Client) -> None:
    both = asyncio.Barrier(2)

    async def bodies() -> AsyncIterator[Request]:
        for request in prompts(129):
            yield request
        await both.wait()
        assert len((await queue.stats()).producers) == 1

    await asyncio.gather(client.submit_many(bodies()), client.submit_many(bodies()))
    await client.aclose()
    assert (await queue.stats()).producers == {}


async def test_short_calls_cost_nothing(queue: Queue, client: Client) -> None:
    async def num_leased() -> int:
        """Only the script of the lease trims a ZSET here."""
        stats: Any = await queue.redis.info("commandstats")
        return int(stats.get("cmdstat_zremrangebyscore", {"calls": 0})["calls"])

    before = await num_leased()
    await client.submit(prompts(1)[0])
    ids = await client.submit_many(prompts(20))
    await client.cancel(ids)
    assert [result.id async for result in client.map(prompts(0))] == []
    assert {r.id async for r in client.as_completed(ids)} == set(ids)
    assert await num_leased() == before


async def test_block_of_several_calls_holds_the_lease(queue: Queue, client: Client) -> None:
    async with client.submitting():
        await client.submit(prompts(1)[0])
        assert list((await queue.stats()).producers) == [client.name]
        await client.aclose()
        assert (await queue.stats()).producers == {}


def test_synchronous_block_holds_the_lease(one_redis_url: str) -> None:
    name = f"test-{uuid4().hex[:12]}"
    with SyncClient(QueueSettings(redis_url=one_redis_url, queue=name)) as client:
        queue = client._client.queue
        with client.submitting():
            assert len(client._run(queue.stats()).producers) == 1
        while client._run(queue.stats()).producers:
            pass


async def test_waiting_command_holds_the_lease_until_its_last_row(
    queue: Queue, one_redis_url: str, tmp_path: Path
) -> None:
    """After a cut answer, it asks once more, so a worker must not end before."""
    (tmp_path / "in.jsonl").write_text('{"prompt": "word", "max_tokens": 4}\n')
    shell = CommandLine(one_redis_url, queue.keys.queue, tmp_path)
    process = await shell.start("submit", "in.jsonl", "--wait", "-o", "out.jsonl")
    while not (await queue.stats()).counters.get("queued"):
        assert process.returncode is None
        await asyncio.sleep(0.01)
    assert len((await queue.stats()).producers) == 1
    async with worker(one_redis_url, queue, tmp_path / "log") as until_empty:
        assert (await ended(process)).code == 0
        assert await asyncio.to_thread(until_empty.process.wait) == 0
    assert (await queue.stats()).producers == {}


# -- the end of a worker ------------------------------------------------------------------------------


async def test_worker_ends_when_all_is_done(
    queue: Queue, client: Client, one_redis_url: str, tmp_path: Path
) -> None:
    retried = prompts(1)[0]
    ids = await client.submit_many([*prompts(30), a_request("late", delay_s=1)])
    async with worker(one_redis_url, queue, tmp_path / "log") as process:
        ids.append(await client.submit(retried))
        assert await exit_code(process) == 0
        assert reasons(process) == ["its queues are empty, and no producer is submitting"]
    stats = await queue.stats()
    assert (stats.counters["succeeded"], stats.workers) == (len(ids), {})
    assert await audit(queue) == []


async def test_worker_to_which_nothing_comes_ends_after_its_time(
    queue: Queue, one_redis_url: str, tmp_path: Path
) -> None:
    brief = {"GRISTMILL_FIRST_REQUEST_TIMEOUT_S": "0.5"}
    async with worker(one_redis_url, queue, tmp_path / "log", **brief) as process:
        assert await exit_code(process) == 0
        (reason,) = reasons(process)
        assert reason.startswith("no request came within 0.5 s")


async def test_worker_waits_for_a_slow_producer_and_for_the_lease_of_a_killed_one(
    queue: Queue, one_redis_url: str, tmp_path: Path
) -> None:
    environment = os.environ | {
        "REDIS_URL": one_redis_url,
        "GRISTMILL_QUEUE": queue.keys.queue,
        "GRISTMILL_LEASE_S": PRODUCER_LEASE_S,
    }
    slow = [sys.executable, str(TESTS / "slow_producer.py"), str(tmp_path), "200"]
    keys = queue.keys
    with subprocess.Popen(slow, env=environment, preexec_fn=die_with_parent) as producer:  # noqa: PLW1509  # one C call
        async with worker(one_redis_url, queue, tmp_path / "log") as process:
            await until(queue, "succeeded", 200)
            await until_renewed(queue.redis, keys.producers, 4)  # 1.6 s, in which the worker looks
            assert process.process.poll() is None
            (tmp_path / "go-0").touch()
            await until(queue, "succeeded", 400)
            await until_renewed(queue.redis, keys.producers, 1)
            producer.kill()
            end_ms = await lease_end_ms(queue.redis, keys.producers)
            assert process.process.poll() is None
            assert await exit_code(process) == 0
            assert (await queue.stats()).now_ms >= end_ms
    assert (await queue.stats()).counters["submitted"] == 400
    assert await audit(queue) == []


async def test_worker_waits_for_what_another_holds_and_takes_it_when_that_one_dies(
    queue: Queue, client: Client, one_redis_url: str, tmp_path: Path
) -> None:
    request_id = await client.submit(prompts(1)[0])
    slow = {"STUB_TOKEN_DELAY_S": "1000"}
    async with worker(one_redis_url, queue, tmp_path / "a", **slow) as victim:
        await until(queue, "in_flight", 1)
        async with worker(one_redis_url, queue, tmp_path / "b") as heir:
            await until_renewed(queue.redis, queue.keys.workers, 8)  # 1.6 s, in which it looks
            assert heir.process.poll() is None
            victim.kill()
            assert await exit_code(heir) == 0
    result = await client.wait(request_id)
    assert (result.is_success, (await queue.stats()).counters["crashed"]) == (True, 1)
    assert await audit(queue) == []


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core an engine")
async def test_parent_ends_when_each_of_its_workers_has_ended(
    queue: Queue, client: Client, one_redis_url: str, tmp_path: Path
) -> None:
    (tmp_path / "broken").touch()
    both = UNTIL_EMPTY | {
        "GRISTMILL_ENGINES": "2",
        "STUB_FOLDER": str(tmp_path),
        "STUB_TOKEN_DELAY_S": "0.02",
        "MAX_IN_FLIGHT": "1",
    }
    ids = await client.submit_many([*prompts(1, max_tokens=100), *prompts(1)])
    log = tmp_path / "log"
    async with worker_process(STUB_ENGINES, one_redis_url, queue, log, **both) as parent:
        assert await exit_code(parent) == 0
        ended = {(each["engine"], each["exit_code"]) for each in parent.events("worker.ended")}
        assert ended == {("0", 0), ("1", 0)}
        assert parent.events("worker.died") == []
    assert (await queue.stats()).counters["succeeded"] == len(ids)


@pytest.mark.long
async def test_worker_waits_for_the_lines_of_a_batch(one_redis_url: str, tmp_path: Path) -> None:
    narrow = {"GRISTMILL_BATCH_WINDOW_REQUESTS": "16"}
    async with opened(one_redis_url, tmp_path) as place:
        queue = place.batches.store.queue
        async with steward_process(TRUE, place.url, place.queue, tmp_path, **narrow):
            batch = await place.create(200)
            async with worker(one_redis_url, queue, tmp_path / "log") as process:
                assert await exit_code(process) == 0
            record = await place.batches.batch("default", batch)
            assert (record.status, record.request_counts.completed) == ("completed", 200)
