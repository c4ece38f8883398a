"""The beginning and the end of a client: what it takes, what a closed one says."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import uuid4

import pytest
from pydantic import SecretStr

from gristmill.producer import Client, InvalidRequest, QueueSettings, SettingsError, SyncClient
from gristmill.shared.connection import connect
from gristmill.shared.operations import Limits
from gristmill.shared.queue import Queue

CLOSED = "the client is closed; open a new one"
BODY = {"prompt": "p"}


@pytest.fixture
async def settings(redis_url: str) -> QueueSettings:
    return QueueSettings(
        redis_url=SecretStr(redis_url), queue=f"test-{uuid4().hex[:12]}", max_depth=1
    )


@pytest.fixture
async def queue(settings: QueueSettings) -> AsyncIterator[Queue]:
    redis = connect(settings.redis_url.get_secret_value())
    yield Queue(redis, settings.queue, Limits())
    await redis.aclose()


async def _all(results: AsyncIterator[Any]) -> list[Any]:
    return [result async for result in results]


CALLS: dict[str, Callable[[Any], Any]] = {
    "submit": lambda c: c.submit(BODY),
    "submit_many": lambda c: c.submit_many([BODY]),
    "map": lambda c: c.map([BODY]),
    "as_completed": lambda c: c.as_completed(["0-a"]),
    "wait": lambda c: c.wait("0-a"),
    "result": lambda c: c.result("0-a"),
    "status": lambda c: c.status(["0-a"]),
    "cancel": lambda c: c.cancel(["0-a"]),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_a_call_of_a_closed_client_says_so(
    settings: QueueSettings, call: Callable[[Any], Any]
) -> None:
    client = Client(settings)
    await client.aclose()
    await client.aclose()
    with pytest.raises(InvalidRequest, match=CLOSED):
        made = call(client)
        await (_all(made) if isinstance(made, AsyncIterator) else made)

    def synchronous() -> None:
        client = SyncClient(settings)
        client.close()
        client.close()
        made = call(client)
        list(made)

    with pytest.raises(InvalidRequest, match=CLOSED):
        await asyncio.to_thread(synchronous)


@pytest.mark.parametrize("name", ["wait", "map", "as_completed", "submit"])
async def test_a_close_ends_the_calls_of_other_threads_in_words(
    settings: QueueSettings, queue: Queue, name: str
) -> None:
    """`submit` waits for room in the queue, the others for a result."""
    client = SyncClient(settings)

    def wait() -> None:
        request_id = client.submit(BODY)
        calls: dict[str, Callable[[], Any]] = {
            "submit": lambda: client.submit(BODY),
            "wait": lambda: client.wait(request_id),
            "map": lambda: list(client.map([BODY])),
            "as_completed": lambda: list(client.as_completed([request_id])),
        }
        calls[name]()

    waiting = asyncio.create_task(asyncio.to_thread(wait))
    while not (await queue.stats()).counters.get("queued"):
        await asyncio.sleep(0.01)
    await asyncio.to_thread(client.close)
    with pytest.raises(InvalidRequest, match=CLOSED):
        await waiting


async def test_a_close_ends_the_waits_of_other_tasks_in_words(settings: QueueSettings) -> None:
    client = Client(settings)
    request_id = await client.submit(BODY)
    waits = [client.wait(request_id), _all(client.as_completed([request_id]))]
    waiting = [asyncio.ensure_future(wait) for wait in waits]
    while len(client._waiter._awaited) < 1 or client._waiter._awaited[request_id].num_waiting < 2:
        await asyncio.sleep(0.01)
    await client.aclose()
    for error in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(error, InvalidRequest)
        assert CLOSED in str(error)


@pytest.mark.parametrize("kind", [Client, SyncClient])
def test_a_client_says_what_it_takes(kind: Any) -> None:
    with pytest.raises(
        SettingsError, match=r"settings is a str; a client takes QueueSettings\("
    ) as told:
        kind("redis://:s3cr3t@host")
    assert "s3cr3t" not in str(told.value)


def test_a_client_says_how_a_queue_is_named() -> None:
    with pytest.raises(
        SettingsError, match=r"queue is a str; name a queue with QueueSettings\(queue="
    ):
        Client(queue="bulk")  # type: ignore[arg-type]
