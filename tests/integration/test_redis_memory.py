"""A Redis that fills up: submits wait, what runs still ends, and claims pause before results find no room."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from command_line import CommandLine, ended
from prometheus_client import REGISTRY
from queues import claimed_by, fresh_queue, outcome, some_requests, succeed
from servers import without_dangerous
from workers import local_worker, settings_for

from gristmill.local.redis_server import running_server
from gristmill.producer import Client, QueueFull
from gristmill.shared.audit import audit
from gristmill.shared.connection import connect
from gristmill.shared.operations import Limits, Settlement
from gristmill.shared.queue import Queue
from gristmill.shared.queue_stats import Stats
from gristmill.shared.redis_full import RedisFull
from gristmill.worker.engine import StubEngine
from gristmill.worker.redis_memory import should_pause_claims


@pytest.fixture
def own_redis_url() -> Iterator[str]:
    with running_server() as url:
        yield url


@pytest.fixture
async def queue(own_redis_url: str) -> AsyncIterator[Queue]:
    async with fresh_queue(own_redis_url, Limits(lease_ms=10_000)) as queue:
        yield queue


@pytest.fixture
async def client(queue: Queue, own_redis_url: str) -> AsyncIterator[Client]:
    async with Client(
        queue=Queue(connect(own_redis_url), queue.keys.queue, queue.limits)
    ) as client:
        yield client


async def fill(queue: Queue, share: float) -> None:
    """Set `maxmemory` so that this share of it is used."""
    used = (await queue.stats()).used_memory
    await queue.redis.config_set("maxmemory", int(used / share))


async def test_full_redis_refuses_submits_and_lets_what_runs_end(queue: Queue) -> None:
    items = await claimed_by(queue, "w", 8)
    await fill(queue, 2)
    with pytest.raises(RedisFull, match=r"^used \d\S* \w+ of maxmemory \d\S* \w+$"):
        await queue.submit(some_requests(1))
    await queue.beat("w")
    assert await succeed(queue, "w", items[:4]) == [1] * 4
    assert await queue.nack("w", items[4], 0, {"code": "x", "message": "y"}) == "retried"
    assert await queue.release("w", items[5:6]) == 1
    assert await queue.crash("w", {}) == (2, [])
    failed = Settlement("r", 1, "failed", outcome(items[0]))
    assert await queue.ack("w", [failed]) == [0]
    (again,) = (await queue.claim("w", "nonce", 1)).claimed
    assert again.crashes == 1
    assert await queue.cancel([items[4].id]) == ["queued"]
    assert await audit(queue) == []


async def test_a_submit_that_does_not_wait_calls_a_full_redis_full(
    queue: Queue, client: Client
) -> None:
    await client.submit({"prompt": "p"})
    await fill(queue, 2)
    words = r"^Redis is full \(used \d\S* \w+ of maxmemory \d\S* \w+\); read results"
    with pytest.raises(QueueFull, match=words) as caught:
        await client.submit({"prompt": "p"}, wait_if_full=False)
    assert (caught.value.depth, caught.value.queued_bytes > 0) == (1, True)


async def test_producers_are_told_of_a_redis_that_evicts(
    queue: Queue, own_redis_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, plain_logging: None
) -> None:  # fmt: skip
    await queue.redis.config_set("maxmemory-policy", "allkeys-lru")
    words = r"Redis at \S+ may evict requests and results .*\(maxmemory-policy allkeys-lru\); set it: CONFIG SET"
    async with Client(settings_for(own_redis_url, queue)) as client:
        await client.submit({"prompt": "p"})
        await client.submit({"prompt": "p"})
    (told,) = [record.getMessage() for record in caplog.records]
    assert re.match(words, told)
    gristmill = CommandLine(own_redis_url, queue.keys.queue, tmp_path)
    gristmill.write("in.jsonl", [{"prompt": "p"}])
    assert re.search(words, gristmill.run("submit", "in.jsonl").err)
    await queue.redis.config_set("maxmemory-policy", "noeviction")
    assert "evict" not in gristmill.run("submit", "in.jsonl").err


async def test_claims_pause_before_redis_is_full_and_resume(
    queue: Queue, client: Client, own_redis_url: str
) -> None:
    settings = settings_for(own_redis_url, queue, beat_s=0.05)
    await queue.redis.setrange("somebody else's", 64 * 2**20, b"x")  # no buffer that goes later
    await fill(queue, 0.93)
    async with local_worker(settings, StubEngine()):
        while (
            REGISTRY.get_sample_value("gristmill_claims_paused", {"queue": queue.keys.queue}) != 1
        ):
            await asyncio.sleep(0.01)
        ids = await client.submit_many(some_requests(10))
        for _ in range(2):
            await next_beat(queue)
        assert (await queue.stats()).counters["queued"] >= 5  # one a beat at most
        await queue.redis.delete("somebody else's")
        results = [result async for result in client.as_completed(ids)]
    assert len(results) == 10
    assert REGISTRY.get_sample_value("gristmill_claims_paused", {"queue": queue.keys.queue}) == 0


async def next_beat(queue: Queue) -> None:
    clock = queue.keys.times
    last = await queue.redis.hget(clock, "last_beat_ms")
    while await queue.redis.hget(clock, "last_beat_ms") == last:
        await asyncio.sleep(0.01)


async def test_a_command_that_waits_for_room_says_that_redis_is_full(
    queue: Queue, own_redis_url: str, tmp_path: Path
) -> None:
    gristmill = CommandLine(own_redis_url, queue.keys.queue, tmp_path)
    gristmill.write("in.jsonl", [{"prompt": "p"}])
    await fill(queue, 2)
    started = await gristmill.start("submit", "in.jsonl")
    assert started.stderr is not None
    while b"is full" not in (line := await started.stderr.readline()):
        assert line, "the command ended without the notice"
    await queue.redis.config_set("maxmemory", 0)
    assert (await ended(started)).code == 0
    assert re.search(rb"Redis at \S+ is full \(used .* of maxmemory .*\); waiting for it", line)


async def test_a_write_of_a_command_says_that_redis_is_full(
    queue: Queue, own_redis_url: str, tmp_path: Path
) -> None:
    gristmill = CommandLine(own_redis_url, queue.keys.queue, tmp_path)
    await fill(queue, 2)
    refused = await gristmill.finish("queue", "weights", "team=3")
    assert refused.code == 4
    assert "is full (it uses its whole maxmemory); read results" in refused.err


async def test_stats_show_the_memory(queue: Queue, own_redis_url: str, tmp_path: Path) -> None:
    gristmill = CommandLine(own_redis_url, queue.keys.queue, tmp_path)
    shown = (await gristmill.finish("queue", "stats")).out
    assert re.search(
        r"^memory     Redis uses [\d.]+ MiB, without a maxmemory$", shown, re.MULTILINE
    )
    await queue.redis.config_set("maxmemory", 2**30)
    shown = (await gristmill.finish("queue", "stats")).out
    assert re.search(
        r"^memory     Redis uses .* MiB of maxmemory 1 GiB \(\d%\)$", shown, re.MULTILINE
    )
    tame = CommandLine(without_dangerous(own_redis_url), queue.keys.queue, tmp_path)
    shown = (await tame.finish("queue", "stats")).out
    assert "memory     unknown: this Redis user may not call INFO\n" in shown


def a_view(used: int, limit: int, record_bytes: int) -> Stats:
    return Stats(0, {"bytes": record_bytes}, {}, 0, 0, 0, used, limit, "fair", None, {}, {}, {})


def test_claims_do_not_pause_for_many_small_requests() -> None:
    """What Redis spends on each beside its record counts as well, or they would wait for ever."""
    counters = {"bytes": 12_700_000, "queued": 134_000}
    assert not should_pause_claims(
        Stats(0, counters, {}, 0, 0, 0, 31_400_000, 31_457_280, "fair", None, {}, {}, {})
    )


@pytest.mark.parametrize(
    ("used", "limit", "record_bytes", "answer"),
    [
        (95, 0, 0, False),  # no limit, or one that we may not see
        (0, 0, 0, False),
        (89, 100, 0, False),
        (90, 100, 0, True),
        (90, 100, 22, True),
        (90, 100, 23, False),  # ending requests is what frees memory
    ],
)
def test_claims_pause_when_results_fill_the_memory(
    used: int, limit: int, record_bytes: int, answer: bool
) -> None:
    assert should_pause_claims(a_view(used, limit, record_bytes)) is answer
