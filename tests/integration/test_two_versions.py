"""Version 0.1.0 and the current tree share a queue, in both directions: from the submit to the end, with deaths and pauses."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from uuid import uuid4

import pytest
from queues import fresh_queue
from releases import HERE, DriverProcess, environment_of, running_driver, unpack_release
from workers import WorkerProcess, worker_process

from gristmill.local.redis_server import running_server
from gristmill.producer import Client, QueueSettings
from gristmill.shared.audit import audit
from gristmill.shared.operations import Limits
from gristmill.shared.queue import Queue
from gristmill.shared.request import COMPLETIONS, Request

Pair = tuple[DriverProcess, DriverProcess]

DIRECTIONS = ("old to new", "new to old")


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_release(tmp_path_factory.mktemp("release"))


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with running_server() as url:
        yield url


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[Queue]:
    async with fresh_queue(redis_url, Limits(lease_ms=1500)) as queue:
        yield queue


@pytest.fixture(scope="module")
def drivers(release: Path, redis_url: str) -> Iterator[Pair]:
    """The queue drivers of the released version and of this tree."""
    with running_driver(release, redis_url) as old, running_driver(HERE, redis_url) as new:
        yield old, new


@pytest.fixture(params=DIRECTIONS)
def pair(request: pytest.FixtureRequest, drivers: Pair, queue: Queue) -> Pair:
    """Both drivers on one fresh queue; the first begins."""
    for driver in drivers:
        driver("use", queue.keys.queue)
    old, new = drivers
    return (old, new) if request.param == DIRECTIONS[0] else (new, old)


def test_each_driver_runs_the_code_of_its_own_tree(pair: Pair) -> None:
    for driver in pair:
        protocol, path = driver("version")
        assert protocol.startswith("1.")
        assert Path(path).is_relative_to(driver.tree)


def test_one_version_submits_and_the_other_serves(pair: Pair) -> None:
    producer, worker = pair
    worker("register", "w")
    fields = {"tenant": "t", "priority": "high", "batch": "b", "metadata": {"row": 1}}
    assert producer("submit", {"id": "r1"} | fields, {"id": "r2"}) == ["accepted", "accepted"]
    assert producer("submit", {"id": "r2"}) == ["queued"]
    assert worker("claim", "w") == [["r1", 1, "t", {}], ["r2", 1, "default", {}]]
    assert worker("ack", "w", "r1", "succeeded") == worker("ack", "w", "r2", "failed") == 1
    assert producer("results", "r1", "r2") == [
        ["succeeded", 1, "t", None], ["failed", 1, "default", None]
    ]  # fmt: skip
    assert producer("counts") == worker("counts")
    assert producer("findings") == worker("findings") == []


def test_a_retry_a_dead_letter_and_its_requeue_cross_over(pair: Pair) -> None:
    first, second = pair
    first("register", "w1")
    second("register", "w2")
    first("submit", {"id": "r", "max_attempts": 2})
    first("claim", "w1")
    first("nack", "w1", "r")
    assert second("claim", "w2") == [["r", 2, "default", {}]]
    second("nack", "w2", "r")
    assert first("results", "r") == [["failed", 2, "default", "engine_error"]]
    assert first("requeue", "r", "again") == "accepted"
    assert [name for name, *_ in second("claim", "w2")] == ["again"]
    assert second("release", "w2", "again") == 1
    assert [name for name, *_ in first("claim", "w1")] == ["again"]
    assert first("ack", "w1", "again", "succeeded") == 1
    assert first("findings") == second("findings") == []


def test_one_version_reaps_what_the_other_held(pair: Pair) -> None:
    first, second = pair
    first("register", "w1")
    second("register", "w2")
    first("submit", {"id": "r1"}, {"id": "r2", "tenant": "t"})
    first("claim", "w1")
    second("reap", "w1")
    assert sorted(second("claim", "w2")) == [["r1", 1, "default", {}], ["r2", 1, "t", {}]]
    assert first("ack", "w1", "r1", "failed") == 0  # stale: another delivery runs
    assert first("ack", "w1", "r1", "succeeded") == 2  # late, and taken: an answer is an answer
    assert second("aborted", "w2") == ["r1"]
    assert second("ack", "w2", "r1", "succeeded") == 0
    assert second("ack", "w2", "r2", "succeeded") == 1
    assert first("counts") == second("counts")
    assert first("findings") == second("findings") == []


def test_a_crash_a_cancel_and_a_pause_cross_over(pair: Pair) -> None:
    first, second = pair
    first("register", "w1")
    second("register", "w2")
    first("submit", {"id": "r1"}, {"id": "r2"})
    first("claim", "w1")
    assert second("cancel", "r2") == ["running"]
    assert first("aborted", "w1") == ["r2"]
    first("crash", "w1")
    second("pause", "looking")
    assert first("claim", "w1") == second("claim", "w2") == []
    first("resume")
    assert second("claim", "w2") == [["r1", 1, "default", {}]]
    second("ack", "w2", "r1", "succeeded")
    assert first("results", "r1", "r2") == [
        ["succeeded", 1, "default", None], ["cancelled", 1, "default", "cancelled"]
    ]  # fmt: skip
    assert first("findings") == second("findings") == []


def test_facts_that_one_version_does_not_know_are_kept(pair: Pair) -> None:
    first, second = pair
    first("register", "w1")
    second("register", "w2")
    facts = {"trace": "00-ab"}
    first("submit", {"id": "r1", "facts": facts}, {"id": "r2", "facts": facts | {"!stream": "1"}})
    assert second("claim", "w2") == [["r1", 1, "default", facts]]
    second("nack", "w2", "r1")
    found = first("claim", "w1", "stream")
    assert sorted(found) == [
        ["r1", 2, "default", facts], ["r2", 1, "default", facts | {"!stream": "1"}]
    ]  # fmt: skip
    assert first("findings") == second("findings") == []


@pytest.mark.parametrize("direction", DIRECTIONS)
async def test_a_killed_worker_is_replaced_by_one_of_the_other_version(
    direction: str, release: Path, redis_url: str, queue: Queue, tmp_path: Path
) -> None:
    victim, heir = (release, HERE) if direction == DIRECTIONS[0] else (HERE, release)
    requests = [
        Request.from_body({"prompt": f"word{i}", "max_tokens": 20}, endpoint=COMPLETIONS)
        for i in range(60)
    ]
    settings = QueueSettings(redis_url=redis_url, queue=queue.keys.queue)
    async with Client(settings) as client, _worker(victim, redis_url, queue, tmp_path) as first:
        ids = await client.submit_many(requests)
        while (await queue.stats()).counters.get("succeeded", 0) < 10:
            await asyncio.sleep(0.01)
        first.kill()
        async with _worker(heir, redis_url, queue, tmp_path):
            results = [result async for result in client.as_completed(ids)]
    assert sorted(result.id for result in results) == sorted(ids)
    assert {result.status for result in results} == {"succeeded"}
    assert (await queue.stats()).counters["succeeded"] == len(ids)
    assert await audit(queue) == []


def _worker(
    tree: Path, redis_url: str, queue: Queue, logs: Path
) -> AbstractAsyncContextManager[WorkerProcess]:
    return worker_process(
        (sys.executable, str(tree / "tests" / "stub_worker.py")),
        redis_url,
        queue,
        logs / f"{uuid4().hex}.log",
        GRISTMILL_BEAT_S="0.2",
        STUB_TOKEN_DELAY_S="0.02",
        MAX_IN_FLIGHT="20",
        **environment_of(tree),
    )
