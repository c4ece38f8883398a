"""Clients and the command line pause and resume a queue."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from command_line import CommandLine
from queues import a_request, fresh_queue

from gristmill.producer import Client, InvalidRequest, SyncClient
from gristmill.shared.connection import connect
from gristmill.shared.pauses import WHOLE_QUEUE, batch_scope, this_user
from gristmill.shared.queue import Queue


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[Queue]:
    async with fresh_queue(redis_url) as queue:
        yield queue


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


@pytest.mark.parametrize("batch", [None, 0, False, [], "night ly", b"nightly"])
async def test_a_wrong_batch_pauses_nothing(queue: Queue, client: Client, batch: Any) -> None:
    for call in (client.pause(batch=batch), client.resume(batch=batch)):
        with pytest.raises(
            InvalidRequest, match=r"batch .* is not allowed; use 1 to 128.*or leave it out"
        ):
            await call
    assert (await queue.stats()).pauses == {}


@pytest.mark.parametrize(
    ("reason", "words"),
    [("x" * 201, "201 characters; the limit is 200"), ("a\nb", "line break"), (None, "a text")],
)
async def test_a_reason_is_one_short_line(
    queue: Queue, client: Client, reason: Any, words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        await client.pause(reason=reason)
    assert (await queue.stats()).pauses == {}


def test_a_synchronous_client_pauses(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.setenv("GRISTMILL_QUEUE", f"test-{uuid4().hex[:12]}")
    with SyncClient() as client:
        assert client.pause(batch="nightly", reason="why")
        assert client.resume(batch="nightly")


def test_the_command_line_pauses_and_shows_it(redis_url: str, tmp_path: Path) -> None:
    shell = CommandLine(redis_url, f"test-{uuid4().hex[:12]}", tmp_path)
    asyncio.run(_use(shell))
    assert shell.run("queue", "pause", "--reason", "new cards").err == f"queue {shell.queue} is paused\n"  # fmt: skip
    again = shell.run("queue", "pause", "--reason", "other cards").err
    assert re.search(
        r"was paused already since 20.* UTC by .*: new cards; your reason was not", again
    )
    out = shell.run("queue", "stats").out
    assert f" UTC by {this_user()}: new cards" in out
    assert shell.run("queue", "stats", "--json").rows[0]["pauses"]["queue"]["reason"] == "new cards"
    assert "is resumed" in shell.run("queue", "resume").err
    assert "paused" not in shell.run("queue", "stats").out
    misspelt = shell.run("queue", "pause", "--queue", f"{shell.queue}x")
    assert f"nobody has used it yet: this Redis has no queue '{shell.queue}x'" in misspelt.err
    assert f"did you mean '{shell.queue}'?" in misspelt.err
    far = shell.run("queue", "stats", "--queue", "far")
    assert far.code == 0
    assert "this Redis has no queue 'far'; it has " in far.err
    assert "this Redis has no" not in shell.run("queue", "stats").err
    named = shell.run("queue", "pause", "bulk")
    assert (named.code, "name the queue as an option: --queue bulk" in named.err) == (2, True)


async def _use(shell: CommandLine) -> None:
    async with shell.open_queue() as queue:
        await queue.submit([a_request("r")])


async def test_the_command_line_pauses_a_batch_that_a_client_named(
    queue: Queue, redis_url: str, tmp_path: Path
) -> None:
    shell = CommandLine(redis_url, queue.keys.queue, tmp_path)
    await queue.submit([a_request("r", batch="mine")])
    told = shell.run("batch", "pause", "mine").err
    assert told.startswith("batch mine is paused; none of its requests has ended yet")
    assert set((await queue.stats()).pauses) == {batch_scope("mine")}
    assert "was paused already since" in shell.run("batch", "pause", "mine").err
    assert shell.run("batch", "resume", "mine").err == "batch mine is resumed\n"
    assert (await queue.stats()).pauses == {}
    bad = shell.run("batch", "pause", "bad name")
    assert (bad.code, "batch 'bad name' is not allowed; use 1 to 128" in bad.err) == (2, True)
    assert shell.run("batch", "pause", "mine", "--tenant", "acme").code == 1
    assert shell.run("batch", "pause", "").code == 2
    assert (await queue.stats()).pauses == {}
