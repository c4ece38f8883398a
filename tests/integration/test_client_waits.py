"""What a waiting client tells about its queue: warnings, and the state in its errors."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator

import pytest
from command_line import SettlingWorker
from pydantic import SecretStr
from queues import claim, end_lease, fresh_queue, open_worker, settlement, some_requests
from structlog.testing import capture_logs

from gristmill.producer import Client, SyncClient, worker_watch
from gristmill.producer.worker_watch import WorkerWatch
from gristmill.shared.pauses import batch_scope
from gristmill.shared.queue import Queue
from gristmill.shared.settings import QueueSettings


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[Queue]:
    async with fresh_queue(redis_url) as queue:
        yield queue


@pytest.fixture
def settings(queue: Queue, redis_url: str) -> QueueSettings:
    return QueueSettings(redis_url=SecretStr(redis_url), queue=queue.keys.queue)


@pytest.fixture
def looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_watch, "FIRST_LOOK_S", 0.0)
    monkeypatch.setattr(worker_watch, "LOOK_INTERVAL_S", 0.0)


async def test_a_timeout_tells_the_state_of_the_queue_and_that_no_worker_lives(
    settings: QueueSettings, queue: Queue
) -> None:
    name = queue.keys.queue
    async with Client(settings) as client:
        first, *_ = await client.submit_many(some_requests(3))
        with pytest.raises(TimeoutError) as caught:
            await client.wait(first, 0.05)
    assert str(caught.value) == (
        f"result of {first} did not come within 0.05 s: 3 queued, 0 in flight, no live worker on"
        f" queue '{name}'; start one: gristmill worker --queue {name} -- --model MODEL"
    )


async def test_a_timeout_and_a_warning_tell_of_a_pause(
    settings: QueueSettings, queue: Queue, looks_at_once: None
) -> None:
    name = queue.keys.queue
    await open_worker(queue, "alive")
    await queue.pauses.pause(batch_scope("nightly"), "ann")
    async with Client(settings) as client:
        request_id = await client.submit({"prompt": "x"})
        with pytest.raises(TimeoutError, match="paused batches: nightly, 1 live worker"):
            await client.wait(request_id, 0.05)
        await client.pause(reason="new cards")
        with capture_logs() as logs, pytest.raises(TimeoutError) as caught:
            await client.wait(request_id, 1.5)
    assert f"1 queued, 0 in flight, and queue {name} is paused since" in str(caught.value)
    assert f": new cards; to resume it: gristmill queue resume --queue {name}" in str(caught.value)
    assert [line["event"] for line in logs] == ["queue.paused"]


async def test_a_timeout_counts_the_workers_that_live(
    settings: QueueSettings, queue: Queue
) -> None:
    await open_worker(queue, "alive")
    await open_worker(queue, "dead")
    await end_lease(queue, "dead")

    def wait() -> None:
        with SyncClient(settings) as client:
            client.wait(client.submit({"prompt": "p"}), 0.05)

    words = f"1 queued, 0 in flight, 1 live worker on queue '{queue.keys.queue}'; the request stays"
    with pytest.raises(TimeoutError, match=re.escape(words)):
        await asyncio.to_thread(wait)


@pytest.mark.usefixtures("plain_logging", "looks_at_once")
@pytest.mark.parametrize("call", ["wait", "map", "as_completed"])
async def test_waiting_without_a_worker_warns_through_standard_logging(
    settings: QueueSettings,
    queue: Queue,
    call: str,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def wait(client: Client) -> None:
        if call == "wait":
            await client.wait(await client.submit({"prompt": "p"}))
        else:
            async for _ in getattr(client, call)([{"prompt": "p"}]):
                pass

    async with Client(settings) as client:
        waiting = asyncio.create_task(wait(client))
        while not caplog.records:
            await asyncio.sleep(0.01)
        async with SettlingWorker(queue).running():
            await waiting
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("gristmill", logging.WARNING)
    assert record.getMessage().startswith(
        "waiting for results: 1 queued, 0 in flight, no live worker on queue"
    )
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("plain_logging", "looks_at_once")
async def test_the_warning_comes_once_until_a_worker_is_seen_again(queue: Queue) -> None:
    watch = WorkerWatch(queue)
    with capture_logs() as events:
        await watch.look()
        await watch.look()
        await open_worker(queue, "w")
        await watch.look()
        await end_lease(queue, "w")
        await watch.look()
    assert [event["event"] for event in events] == ["workers.missed"] * 2


@pytest.mark.usefixtures("plain_logging", "looks_at_once")
async def test_a_quiet_client_leaves_warnings_to_its_caller(queue: Queue) -> None:
    with capture_logs() as events:
        await WorkerWatch(queue, is_quiet=True).look()
    assert events == []


async def test_a_result_that_was_announced_before_anybody_waited_comes_at_once(
    settings: QueueSettings, queue: Queue
) -> None:
    """The reply list told the wait for another id; the next look at all ids comes only after 5 s."""
    async with Client(settings) as client:
        first, second = await client.submit({"prompt": "x"}), await client.submit({"prompt": "y"})
        worker = await open_worker(queue)
        await queue.ack(worker, [settlement(item) for item in await claim(queue, worker, 2)])
        async with asyncio.timeout(4):
            await client.wait(second)
            while await queue.redis.llen(queue.keys.finished(client.name)):
                await asyncio.sleep(0.01)
            assert (await client.wait(first)).is_success
