"""The primary dies or is demoted in mid-run: clients and workers go on by themselves, nothing runs to two ends."""

import asyncio
import itertools
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from redis.crc import key_slot
from servers import SERVICE, Replicated, ask, kill, process_id, running_cluster, running_sentinels
from workers import STUB, worker_process

from gristmill.producer import Client
from gristmill.shared.audit import audit
from gristmill.shared.connection import connect
from gristmill.shared.errors import NotReplicated, ResultExpired, SettingsError
from gristmill.shared.keys import Keys
from gristmill.shared.operations import Limits
from gristmill.shared.queue import Queue
from gristmill.shared.redis_retry import retrying
from gristmill.shared.redis_url import parse
from gristmill.shared.request import Request
from gristmill.shared.results import Result

pytestmark = pytest.mark.alone

BOUND_S = 5.0


def requests(first: int, number: int) -> list[Request]:
    body = {"prompt": "x", "max_tokens": 8}
    return [
        Request.from_body(body, id=f"r{n}", endpoint="/v1/completions")
        for n in range(first, first + number)
    ]


async def recovery_s(queue: Queue, primary: Replicated) -> float:
    """Return the seconds until a write is accepted on another server than the first primary."""
    started_s = time.monotonic()
    while True:
        await retrying(lambda: queue.seal("probe", 1))
        if await asyncio.to_thread(primary.primary_now) != primary.primary:
            return time.monotonic() - started_s
        await asyncio.sleep(0.02)


@contextmanager
def frozen(port: int) -> Iterator[None]:
    """Stop the server on a port for the length of a block; its connections stay."""
    pid = process_id(port)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def ended(client: Client, names: list[str]) -> list[Result]:
    """Wait for the results of those that survived."""

    async def of(name: str) -> Result | None:
        try:
            return await client.wait(name, 40)
        except ResultExpired:
            return None

    return [result for result in await asyncio.gather(*map(of, names)) if result]


async def test_primary_killed_in_mid_run(tmp_path: Path) -> None:
    """A producer submits and a worker works while the primary dies by kill -9."""
    with running_sentinels() as replicated:
        redis = connect(replicated.url)
        queue = Queue(redis, f"test-{uuid4().hex[:12]}", Limits(lease_ms=3000))
        slow = {"STUB_TOKEN_DELAY_S": "0.02"}
        log = tmp_path / "log"
        async with (
            worker_process(STUB, replicated.url, queue, log, **slow) as worker,
            Client(queue=queue) as client,
        ):
            accepted: list[str] = []

            async def submit() -> None:
                for first in range(0, 4000, 20):
                    accepted.extend(await client.submit_many(requests(first, 20)))
                    await asyncio.sleep(0.01)

            submitting = asyncio.create_task(submit())
            while len(accepted) < 400:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(kill, replicated.primary)
            recovered_s = await recovery_s(queue, replicated)
            await submitting
            results = await ended(client, accepted)
            assert len(accepted) == 4000
            assert all(result.is_success for result in results)
            assert len(results) >= 4000 - 400  # the rest was lost with the primary, or ended on it
            assert worker.process.poll() is None
            assert await worker.terminate() == 0
            assert await audit(queue) == []
        await redis.aclose()
    assert recovered_s < 1.0 + BOUND_S, "down-after is 1 s"


async def test_demoted_primary_answers_readonly_and_unblocked(tmp_path: Path) -> None:
    """`SENTINEL FAILOVER`: the old primary lives and refuses; connections that block on it are thrown off."""
    with running_sentinels(num_sentinels=1) as replicated:
        redis = connect(replicated.url)
        queue = Queue(redis, f"test-{uuid4().hex[:12]}", Limits(lease_ms=3000))
        async with (
            worker_process(STUB, replicated.url, queue, tmp_path / "log") as worker,
            Client(queue=queue) as client,
        ):
            await client.wait(await client.submit(requests(0, 1)[0]), 20)
            ask(replicated.sentinels[0], "SENTINEL", "FAILOVER", SERVICE)
            await recovery_s(queue, replicated)
            started_s = time.monotonic()
            await client.wait(await client.submit(requests(1, 1)[0]), 20)
            assert time.monotonic() - started_s < BOUND_S
            assert await worker.terminate() == 0
        await redis.aclose()


async def test_primary_of_a_cluster_killed_in_mid_run(tmp_path: Path) -> None:
    with running_cluster(has_replica=True) as url:
        redis = connect(url)
        first = parse(url).nodes[0][1]
        names = (f"test-{number}" for number in itertools.count())
        name = next(name for name in names if key_slot(Keys(name).prefix.encode()) < 5000)
        queue = Queue(redis, name, Limits(lease_ms=3000))
        async with (
            worker_process(STUB, url, queue, tmp_path / "log") as worker,
            Client(queue=queue) as client,
        ):
            await client.submit_many(requests(0, 100))
            await asyncio.to_thread(kill, first)
            started_s = time.monotonic()
            accepted = await client.submit_many(requests(100, 100))
            assert time.monotonic() - started_s < 2 * BOUND_S, "the node timeout is 1 s"
            assert len(await ended(client, accepted)) == 100
            assert await worker.terminate() == 0
            assert await audit(queue) == []
        await redis.aclose()


async def test_submit_waits_for_its_replicas() -> None:
    with running_sentinels(num_sentinels=1) as replicated:
        redis = connect(replicated.url)
        queue = Queue(redis, f"test-{uuid4().hex[:12]}", Limits(min_replicas=1))
        assert await queue.submit(requests(0, 3)) == ["accepted"] * 3
        ask(replicated.primary, "SCRIPT", "FLUSH")
        assert await queue.submit(requests(0, 3)) == ["queued"] * 3
        replica = connect(f"redis://127.0.0.1:{replicated.replicas[0]}")
        assert await replica.exists(queue.keys.request("r2"))
        await replica.aclose()

        ask(replicated.replicas[0], "REPLICAOF", "NO", "ONE")  # it stops following
        message = r"0 of 1 replicas have what was submitted.*the operator can lower GRISTMILL_MIN_REPLICAS"
        with pytest.raises(NotReplicated, match=message):
            await queue.submit(requests(3, 1))
        with pytest.raises(
            NotReplicated
        ):  # nothing new is written, and yet it must not be believed
            await queue.submit(requests(3, 1))
        ask(replicated.replicas[0], "REPLICAOF", "127.0.0.1", replicated.primary)
        assert await retrying(lambda: queue.submit(requests(3, 1)), 20) == ["queued"]
        await redis.aclose()


async def test_repeat_on_another_connection_waits_for_what_the_first_wrote() -> None:
    """WAIT counts the writes of its own connection; a repeat that writes none must not pass for that."""
    with running_sentinels(num_sentinels=1) as replicated:
        redis = connect(replicated.url)
        queue = Queue(redis, f"test-{uuid4().hex[:12]}", Limits(min_replicas=1))
        await queue.submit(requests(0, 1))
        with frozen(replicated.replicas[0]):
            with pytest.raises(NotReplicated):
                await queue.submit(requests(1, 1))
            other = Queue(connect(replicated.url), queue.keys.queue, queue.limits)
            with pytest.raises(NotReplicated):
                await other.submit(requests(1, 1))
            await other.redis.aclose()
        await redis.aclose()


async def test_cluster_has_no_submit_that_waits() -> None:
    redis = connect("redis+cluster://127.0.0.1:1")
    with pytest.raises(SettingsError, match="not a cluster"):
        await Queue(redis, limits=Limits(min_replicas=1)).submit(requests(0, 1))
    await redis.aclose()
