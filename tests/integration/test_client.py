"""The client: waiting together, spoiled records, windows, its synchronous twin."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from uuid import uuid4

import pytest
from command_line import SettlingWorker
from pydantic import SecretStr

from gristmill.producer import Client, SyncClient
from gristmill.shared.connection import connect
from gristmill.shared.errors import IdConflict, InvalidRequest, QueueFull, ResultExpired
from gristmill.shared.operations import Limits
from gristmill.shared.queue import Queue
from gristmill.shared.request import COMPLETIONS, Request
from gristmill.shared.settings import QueueSettings


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[Queue]:
    redis = connect(redis_url)
    yield Queue(redis, f"test-{uuid4().hex[:12]}", Limits(max_depth=50))
    await redis.aclose()


@pytest.fixture
async def client(queue: Queue, redis_url: str) -> AsyncIterator[Client]:
    async with Client(Queue(connect(redis_url), queue.keys.queue, queue.limits)) as client:
        yield client


@pytest.fixture
async def worker(queue: Queue) -> AsyncIterator[SettlingWorker]:
    async with SettlingWorker(queue).running() as worker:
        yield worker


def prompts(number: int) -> Iterator[Request]:
    return (Request.from_body({"prompt": f"p{i}"}, endpoint=COMPLETIONS) for i in range(number))


@pytest.mark.usefixtures("worker")
async def test_many_waits_for_one_id_all_end(client: Client) -> None:
    request_id = await client.submit(next(prompts(1)))

    async def wait_often() -> None:
        for _ in range(30):
            assert (await client.wait(request_id)).is_success

    await asyncio.gather(*(wait_often() for _ in range(20)))


@pytest.mark.usefixtures("worker")
async def test_a_spoiled_record_hides_no_neighbour(client: Client, queue: Queue) -> None:
    await queue.redis.set(queue.keys.result("spoiled"), b'{"id": \xff')
    requests = list(prompts(10))
    results = {r.id: r async for r in client.as_completed([*requests, "spoiled"])}
    assert results["spoiled"].status == "failed"
    assert results["spoiled"].failure.startswith("unreadable: the record under result:spoiled")
    assert all(results[request.id].is_success for request in requests)


@pytest.mark.usefixtures("worker")
async def test_a_queue_smaller_than_the_window_is_waited_for(client: Client) -> None:
    assert len([r async for r in client.as_completed(prompts(400), window=4096)]) == 400


async def test_a_full_queue_is_told_to_who_does_not_wait(client: Client) -> None:
    await client.submit_many(prompts(50))
    with pytest.raises(QueueFull, match="50 of 50 requests"):
        await client.submit(next(prompts(1)), wait=False)


@pytest.mark.usefixtures("worker")
async def test_a_slow_source_is_submitted_as_it_comes(client: Client) -> None:
    seen = asyncio.Event()

    async def source() -> AsyncIterator[Request]:
        yield next(prompts(1))
        await seen.wait()  # ends only if the first is not held back
        yield next(prompts(1))

    async for result in client.as_completed(source()):
        assert result.is_success
        seen.set()


async def test_an_unknown_id_is_told(client: Client) -> None:
    with pytest.raises(ResultExpired, match="request nobody: the id is unknown"):
        await client.wait("nobody", 10)
    with pytest.raises(ResultExpired):
        await client.result("nobody")


async def test_a_wait_ends_at_its_timeout_and_the_request_lives(client: Client) -> None:
    request_id = await client.submit(next(prompts(1)))
    with pytest.raises(TimeoutError):
        await client.wait(request_id, 0.05)
    assert await client.result(request_id) is None
    assert (await client.status([request_id]))[0][0] == "queued"


async def test_another_body_under_one_id_is_refused(client: Client) -> None:
    await client.submit({"prompt": "a"}, endpoint=COMPLETIONS, id="same")
    await client.submit({"prompt": "a"}, endpoint=COMPLETIONS, id="same")
    with pytest.raises(IdConflict, match="request same: the id belongs to another request"):
        await client.submit({"prompt": "b"}, endpoint=COMPLETIONS, id="same")


async def test_a_deadline_passes_with_no_worker_alive(client: Client) -> None:
    request_id = await client.submit(next(prompts(1)))
    late = await client.submit({"prompt": "late"}, endpoint=COMPLETIONS, deadline_s=0.05)
    assert (await client.wait(late, 30)).status == "expired"
    assert (await client.status([request_id]))[0][0] == "queued"


@pytest.mark.parametrize("window", [0, -1])
async def test_a_window_below_one_is_refused(client: Client, window: int) -> None:
    with pytest.raises(InvalidRequest, match=f"window is {window}"):
        client.as_completed(prompts(1), window=window)


async def test_too_large_a_request_names_size_limit_and_setting(client: Client) -> None:
    client._max_request_bytes = 100
    with pytest.raises(
        InvalidRequest,
        match=r"its body has 213 bytes; the limit is 100 \(GRISTMILL_MAX_REQUEST_BYTES\)",
    ):
        await client.submit({"prompt": "x" * 200}, endpoint=COMPLETIONS)


@pytest.mark.usefixtures("worker")
async def test_the_synchronous_twin_takes_a_generator_that_uses_it(
    queue: Queue, redis_url: str
) -> None:
    settings = QueueSettings(redis_url=SecretStr(redis_url), queue=queue.keys.queue)

    def run() -> list[bool]:
        with SyncClient(settings) as client:
            ids = (client.submit(request) for request in prompts(30))
            return [result.is_success for result in client.as_completed(ids)]

    assert await asyncio.to_thread(run) == [True] * 30


@pytest.mark.usefixtures("worker")
async def test_the_synchronous_twin_keeps_the_order(queue: Queue, redis_url: str) -> None:
    settings = QueueSettings(redis_url=SecretStr(redis_url), queue=queue.keys.queue)
    requests = list(prompts(100))

    def run() -> list[str]:
        with SyncClient(settings) as client:
            first = client.wait(client.submit(requests[0]), 30)
            assert client.result(first.id) == first
            assert client.status([first.id]) == [("done", "")]
            assert client.cancel([first.id]) == ["done"]
            return [result.id for result in client.map(iter(requests), window=10)]

    assert await asyncio.to_thread(run) == [request.id for request in requests]
