"""Clients and the command line pause and resume a queue."""

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
from command_line import CommandLine

from gristmill.producer import Client, InvalidRequest, SyncClient
from gristmill.shared.connection import connect
from gristmill.shared.pauses import WHOLE_QUEUE, batch_scope, this_user
from gristmill.shared.queue import Queue


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[Queue]:
    redis = connect(redis_url)
    yield Queue(redis, f"test-{uuid4().hex[:12]}")
    await redis.aclose()


@pytest.fixture
async def client(queue: Queue, redis_url: str) -> AsyncIterator[Client]:
    async with Client(queue=Queue(connect(redis_url), queue.keys.queue, queue.limits)) as client:
        yield client


async def test_a_client_pauses_and_resumes_the_queue(queue: Queue, client: Client) -> None:
    assert await client.pause(reason="upgrade")
    assert not await client.pause()
    pause = (await queue.stats()).pauses[WHOLE_QUEUE]
    assert (pause.by, pause.reason) == (this_user(), "upgrade")
    assert await client.resume()
    assert not await client.resume()


async def test_a_client_pauses_one_batch(queue: Queue, client: Client) -> None:
    assert await client.pause(batch="nightly")
    assert set((await queue.stats()).pauses) == {batch_scope("nightly")}
    assert await client.resume(batch="nightly")
    with pytest.raises(InvalidRequest, match="is no id"):
        await client.pause(batch="night ly")


def test_a_synchronous_client_pauses(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.setenv("GRISTMILL_QUEUE", f"test-{uuid4().hex[:12]}")
    with SyncClient() as client:
        assert client.pause(batch="nightly", reason="why")
        assert client.resume(batch="nightly")


def test_the_command_line_pauses_and_shows_it(redis_url: str, tmp_path: Path) -> None:
    shell = CommandLine(redis_url, f"test-{uuid4().hex[:12]}", tmp_path)
    assert shell.run("queue", "pause", "--reason", "new cards").err == f"queue {shell.queue} is paused\n"  # fmt: skip
    assert "was paused already" in shell.run("queue", "pause").err
    out = shell.run("queue", "stats").out
    assert f"ago by {this_user()}: new cards" in out
    assert shell.run("queue", "stats", "--json").rows[0]["pauses"]["queue"]["reason"] == "new cards"
    assert "is resumed" in shell.run("queue", "resume").err
    assert "paused" not in shell.run("queue", "stats").out
