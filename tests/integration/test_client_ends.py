"""The beginning and the end of a client: what it takes, what a closed one says."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import uuid4

import pytest
from pydantic import SecretStr

from gristmill.local.processes import free_port
from gristmill.producer import Client, InvalidRequest, QueueSettings, SettingsError, SyncClient
from gristmill.shared.connection import connect
from gristmill.shared.operations import Limits
from gristmill.shared.queue import Queue
from gristmill.shared.tasks import end

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


@pytest.mark.parametrize("name", ["submit", "submit_many", "map", "as_completed", "source"])
async def test_a_close_ends_the_calls_that_wait_for_room_or_for_a_source(
    settings: QueueSettings, name: str
) -> None:
    is_waiting = asyncio.Event()

    async def source() -> AsyncIterator[dict[str, str]]:
        is_waiting.set()
        await asyncio.Event().wait()
        yield BODY

    client = Client(settings)
    await client.submit(BODY)  # the queue is full now
    calls: dict[str, Callable[[], Any]] = {
        "submit": lambda: client.submit(BODY),
        "submit_many": lambda: client.submit_many([BODY] * 3),
        "map": lambda: _all(client.map([BODY] * 3)),
        "as_completed": lambda: _all(client.as_completed([BODY] * 3)),
        "source": lambda: _all(client.map(source())),
    }
    waiting = asyncio.ensure_future(calls[name]())
    if name == "source":
        await is_waiting.wait()
    while not client._calls._calls:
        await asyncio.sleep(0)
    await client.aclose()
    with pytest.raises(InvalidRequest, match=CLOSED):
        await waiting


async def test_a_close_ends_the_calls_that_wait_for_the_first_answer() -> None:
    client = Client(QueueSettings(redis_url=SecretStr(f"redis://127.0.0.1:{free_port()}/0")))
    calls = [asyncio.ensure_future(client.submit(BODY)) for _ in range(3)]
    while len(client._calls._calls) < len(calls):
        await asyncio.sleep(0)
    await client.aclose()
    for error in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(error, InvalidRequest)
        assert CLOSED in str(error)


async def test_a_call_that_its_caller_cancels_is_cancelled(settings: QueueSettings) -> None:
    async with Client(settings) as client:
        await client.submit(BODY)
        call = asyncio.ensure_future(client.submit(BODY))
        while not client._calls._calls:
            await asyncio.sleep(0)
        await end(call)
        assert call.cancelled()
        assert not client._calls._calls


FORKS = """
import asyncio, os, sys
from gristmill.producer import Client, InvalidRequest, QueueSettings, SyncClient

settings = QueueSettings(redis_url=sys.argv[1], queue=sys.argv[2])

async def main():
    client = Client(settings)
    await client.status(["0-a"])
    if not os.fork():
        try:
            await client.status(["0-a"])
        except InvalidRequest as error:
            os.write(1, f"{error}\\n".encode())
        os._exit(0)
    os.wait()
    await client.aclose()

asyncio.run(main())
with SyncClient(settings) as client:
    results = client.map([{"prompt": "p"}])
    if child := os.fork():
        os.waitpid(child, 0)
    else:
        for call in (lambda: client.status(["0-a"]), lambda: next(results), lambda: client.submit_many([])):
            try:
                call()
            except InvalidRequest as error:
                os.write(1, f"{error}\\n".encode())
        client.close()
        os._exit(0)
    print(client.status(["0-a"]))
"""


def test_a_client_that_was_opened_before_a_fork_says_so(settings: QueueSettings) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FORKS, settings.redis_url.get_secret_value(), settings.queue],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    *errors, last = ended.stdout.splitlines()
    assert [error[:37] for error in errors] == ["the client was opened before a fork, "] * 4
    assert (last, ended.stderr) == ("[('unknown', '')]", "")


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
