"""Calls about many items: one is bad, or the caller takes no more results."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any
from uuid import uuid4

import pytest
from command_line import SettlingWorker
from pydantic import SecretStr

from gristmill.producer import (
    Client,
    IdConflict,
    InvalidRequest,
    NotServed,
    QueueSettings,
    Request,
    SyncClient,
)
from gristmill.shared.connection import connect
from gristmill.shared.queue import Queue

BODY = {"prompt": "p"}


@pytest.fixture
def settings(redis_url: str) -> QueueSettings:
    return QueueSettings(
        redis_url=SecretStr(redis_url), queue=f"test-{uuid4().hex[:12]}", max_request_bytes=1024
    )


@pytest.fixture
async def queue(settings: QueueSettings) -> AsyncIterator[Queue]:
    redis = connect(settings.redis_url.get_secret_value())
    yield Queue(redis, settings.queue)
    await redis.aclose()


@pytest.fixture
async def client(settings: QueueSettings) -> AsyncIterator[Client]:
    async with Client(settings) as client:
        yield client


async def _take(made: Any) -> Any:
    return [result async for result in made] if isinstance(made, AsyncIterator) else await made


CALLS: dict[str, Callable[[Client, Any], Any]] = {
    "submit_many": lambda client, items: client.submit_many(items),
    "map": lambda client, items: client.map(items),
    "as_completed": lambda client, items: client.as_completed(items),
}
BAD: dict[str, tuple[Any, type[InvalidRequest], str]] = {
    "no request": (5, InvalidRequest, "items[3]: a int is no request"),
    "empty": ({}, InvalidRequest, "items[3]: the body has none of"),
    "too large": ({"prompt": "x" * 2000}, InvalidRequest, "items[3]: its body has 2,013 bytes"),
    "not served": ({"prompt": "p", "model": "other"}, NotServed, "items[3]: no worker of queue"),
    "conflict": (Request.from_body({"prompt": "b"}, id="same"), IdConflict, "request same: items[3]: the id"),
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(("bad", "kind", "words"), BAD.values(), ids=BAD)
async def test_the_items_before_a_bad_one_are_submitted_and_the_error_has_its_index(
    client: Client,
    queue: Queue,
    call: Callable[[Client, Any], Any],
    bad: Any,
    kind: type[InvalidRequest],
    words: str,
) -> None:
    facts: dict[str, str | int] = {
        "models": "served",
        "endpoints": "/v1/completions",
        "max_model_len": 8,
    }
    await queue.register("w", facts)
    await client.submit({"prompt": "a"}, id="same")
    items = [Request.from_body(BODY, id=f"r-{n}") for n in range(3)]
    with pytest.raises(kind) as caught:
        await _take(call(client, [*items, bad]))
    assert type(caught.value) is kind
    assert words in str(caught.value)
    states = [state for state, _ in await client.status([item.id for item in items])]
    assert states == ["queued"] * 3


async def test_metadata_that_is_no_json_is_an_error_of_its_item(client: Client) -> None:
    with pytest.raises(InvalidRequest, match=r"items\[0\]: the metadata cannot be written as JSON"):
        await client.submit_many([BODY], metadata={"when": object()})
    with pytest.raises(InvalidRequest, match="request r-1: the metadata cannot be written as JSON"):
        Request.from_body(BODY, id="r-1", metadata={"when": object()})


@pytest.mark.parametrize("name", ["map", "as_completed"])
async def test_nobody_waits_for_what_the_caller_no_longer_takes(
    client: Client, queue: Queue, name: str
) -> None:
    async with SettlingWorker(queue).running():
        first = await client.submit(BODY)
        await client.wait(first)
    waiting = [await client.submit({"prompt": str(n)}) for n in range(5)]
    items: Any = [first, *waiting]
    if name == "map":
        done = await client.result(first)
        assert done is not None
        items = [Request.from_body(BODY, id=first), *({"prompt": str(n)} for n in range(5))]
    async with aclosing(getattr(client, name)(items)) as results:
        async for result in results:
            assert result.id == first
            break
    assert client._waiter._awaited == {}


@pytest.mark.parametrize("name", ["map", "as_completed"])
async def test_a_break_of_the_synchronous_twin_ends_the_waits(
    settings: QueueSettings, queue: Queue, name: str
) -> None:
    def run(first: str) -> None:
        with SyncClient(settings) as client:
            items = [Request.from_body(BODY, id=first), {"prompt": "waits"}]
            for result in getattr(client, name)(items):
                assert result.id == first
                break
            while client._client._waiter._awaited:
                time.sleep(0.01)

    async with Client(settings) as client, SettlingWorker(queue).running():
        first = await client.submit(BODY)
        await client.wait(first)
    await asyncio.to_thread(run, first)


async def test_a_cancelled_reader_leaves_the_other_waits_alone(
    client: Client, queue: Queue
) -> None:
    """Both wait for one id, and share its future."""
    request = Request.from_body(BODY, id="shared")

    async def read() -> None:
        async for _ in client.map([request]):
            pass

    reader = asyncio.create_task(read())
    while (await client.status(["shared"]))[0][0] != "queued":
        await asyncio.sleep(0.01)
    waiter = asyncio.create_task(client.wait("shared"))
    while (
        "shared" not in client._waiter._awaited or client._waiter._awaited["shared"].num_waiting < 2
    ):
        await asyncio.sleep(0.01)
    reader.cancel()
    await asyncio.wait([reader])
    async with SettlingWorker(queue).running():
        assert (await waiter).is_success


async def test_a_source_that_never_comes_is_not_left_behind(client: Client, queue: Queue) -> None:
    is_ended = asyncio.Event()

    async def source() -> AsyncIterator[dict[str, str]]:
        try:
            yield BODY
            await asyncio.Event().wait()
        finally:
            is_ended.set()

    async with (
        SettlingWorker(queue).running(),
        aclosing(client.as_completed(source())) as results,
    ):
        async for _ in results:
            break
    await asyncio.wait_for(is_ended.wait(), 5)
