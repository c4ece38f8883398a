"""The sources of the synchronous client: they block, raise, call the client, and come in any number."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
from command_line import SettlingWorker
from pydantic import SecretStr

from gristmill.producer import Client, QueueSettings, SyncClient
from gristmill.shared.connection import connect
from gristmill.shared.queue import Queue

BODY = {"prompt": "p"}

NUM_SOURCES = 40
"""More than the threads of an event loop's executor, 32 at most."""


@pytest.fixture
def settings(redis_url: str) -> QueueSettings:
    return QueueSettings(redis_url=SecretStr(redis_url), queue=f"test-{uuid4().hex[:12]}")


@pytest.fixture
async def queue(settings: QueueSettings) -> AsyncIterator[Queue]:
    redis = connect(settings.redis_url.get_secret_value())
    yield Queue(redis, settings.queue)
    await redis.aclose()


@pytest.fixture
async def worker(queue: Queue) -> AsyncIterator[SettlingWorker]:
    async with SettlingWorker(queue).running() as worker:
        yield worker


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "submit_many": lambda client, items: client.submit_many(items),
    "map": lambda client, items: list(client.map(items)),
    "as_completed": lambda client, items: list(client.as_completed(items)),
}
ERRORS = (
    SystemExit(3),
    KeyboardInterrupt(),
    KeyError("k"),
    asyncio.CancelledError(),
    StopAsyncIteration(),
)


def failing(num_items: int, error: BaseException) -> Iterator[Any]:
    for number in range(num_items):
        yield {"prompt": str(number)}
    raise error


async def failing_later(num_items: int, error: BaseException) -> AsyncIterator[dict[str, str]]:
    for item in failing(num_items, error):
        yield item


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_what_a_source_raises_reaches_the_caller_and_the_client_lives(
    settings: QueueSettings, call: Callable[[Any, Any], Any], error: BaseException
) -> None:
    with SyncClient(settings) as client:
        with pytest.raises(type(error)) as caught:
            call(client, failing(1, error))
        assert caught.value is error
        assert client.status(["0-a"]) == [("unknown", "")]


def test_a_body_and_ids_that_end_the_program_leave_the_client_alive(
    settings: QueueSettings,
) -> None:
    class Exiting(Mapping[str, Any]):
        def __getitem__(self, name: str) -> Any:
            raise SystemExit(3)

        def __iter__(self) -> Iterator[str]:
            raise SystemExit(3)

        def __len__(self) -> int:
            return 1

    with SyncClient(settings) as client:
        for call in CALLS.values():
            with pytest.raises(SystemExit):
                call(client, [Exiting()])
        with pytest.raises(SystemExit):
            client.submit(Exiting())
        for of_ids in (client.status, client.cancel):
            with pytest.raises(SystemExit):
                of_ids(failing(0, SystemExit(3)))
        ids = (client.submit(BODY) for _ in range(2))
        assert [state for state, _ in client.status(ids)] == ["queued"] * 2


@pytest.mark.parametrize("num_items", [10, 200])
@pytest.mark.parametrize("name", CALLS)
async def test_what_a_source_gave_before_it_raised_is_submitted(
    settings: QueueSettings, queue: Queue, name: str, num_items: int
) -> None:
    async def num_queued() -> int:
        return (await queue.stats()).counters.get("queued", 0)

    def synchronous() -> None:
        with SyncClient(settings) as client:
            CALLS[name](client, failing(num_items, KeyError("k")))

    with pytest.raises(KeyError):
        await asyncio.to_thread(synchronous)
    assert await num_queued() == num_items
    async with Client(settings) as client:
        for number, source in enumerate((failing, failing_later), start=2):
            made = getattr(client, name)(source(num_items, KeyError("k")))
            with pytest.raises(KeyError):
                _ = [r async for r in made] if isinstance(made, AsyncIterator) else await made
            assert await num_queued() == num_items * number


@pytest.mark.usefixtures("worker")
async def test_sources_that_call_the_client_do_not_wait_for_each_other(
    settings: QueueSettings,
) -> None:
    all_begun = threading.Barrier(NUM_SOURCES)

    def run(client: SyncClient) -> bool:
        def source() -> Iterator[dict[str, str]]:
            all_begun.wait()
            yield {"prompt": client.submit_many([BODY])[0]}

        return [result.is_success for result in client.map(source())] == [True]

    def run_all() -> list[bool]:
        with SyncClient(settings) as client, ThreadPoolExecutor(NUM_SOURCES) as threads:
            return list(threads.map(run, [client] * NUM_SOURCES))

    assert all(await asyncio.to_thread(run_all))


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("name", ["map", "as_completed"])
async def test_an_item_is_handed_on_while_its_source_blocks(
    settings: QueueSettings, name: str
) -> None:
    """Each item but the first comes after the result of the one before was used."""

    def run() -> int:
        used = threading.Semaphore()

        def source() -> Iterator[dict[str, str]]:
            for number in range(5):
                used.acquire()
                yield {"prompt": str(number)}

        num_results = 0
        with SyncClient(settings) as client:
            for _ in getattr(client, name)(source()):
                num_results += 1
                used.release()
        return num_results

    assert await asyncio.to_thread(run) == 5


@pytest.mark.usefixtures("worker")
async def test_the_thread_of_a_source_ends_with_its_call(settings: QueueSettings) -> None:
    """The source has more items than are read ahead, so its thread waits for room."""

    def run() -> None:
        with SyncClient(settings) as client:
            for _ in client.map(({"prompt": str(n)} for n in range(10_000)), window=4):
                break
            while any(thread.name == "gristmill-source" for thread in threading.enumerate()):
                time.sleep(0.01)

    await asyncio.to_thread(run)


ENDS = {
    "break": "next(iter(client.map(source())))",
    "close": "threading.Timer(0, lambda: (blocked.wait(), client.close())).start(); list(client.map(source()))",
    "interrupt": "threading.Timer(0, lambda: (blocked.wait(), os.kill(os.getpid(), 2))).start(); list(client.map(source()))",
    "submit_many": "threading.Timer(0, lambda: (blocked.wait(), client.close())).start(); client.submit_many(source())",
}  # fmt: skip


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
async def test_a_process_ends_although_a_source_blocks(settings: QueueSettings, end: str) -> None:
    code = f"""
import os, sys, threading
from gristmill.producer import InvalidRequest, QueueSettings, SyncClient
blocked = threading.Event()
def source():
    yield {BODY!r}
    blocked.set()
    threading.Event().wait()
with SyncClient(QueueSettings(redis_url=sys.argv[1], queue=sys.argv[2])) as client:
    try:
        {end}
    except (KeyboardInterrupt, InvalidRequest) as error:
        pass
print("end")
"""
    url = settings.redis_url.get_secret_value()
    command = [sys.executable, "-c", code, url, settings.queue]
    ended = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=30, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "end\n", "")
