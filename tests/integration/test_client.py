"""The client: waiting together, spoiled records, windows, its synchronous twin."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from command_line import SettlingWorker
from pydantic import SecretStr
from queues import fresh_queue

from gristmill.producer import Client, SyncClient
from gristmill.shared.connection import connect
from gristmill.shared.errors import (
    IdConflict,
    InvalidRequest,
    QueueFull,
    ResultExpired,
    SettingsError,
)
from gristmill.shared.operations import Limits
from gristmill.shared.queue import Queue
from gristmill.shared.request import CHAT, COMPLETIONS, Request
from gristmill.shared.settings import QueueSettings


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[Queue]:
    async with fresh_queue(redis_url, Limits(max_depth=50)) as queue:
        yield queue


@pytest.fixture
async def client(queue: Queue, redis_url: str) -> AsyncIterator[Client]:
    async with Client(queue=Queue(connect(redis_url), queue.keys.queue, queue.limits)) as client:
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
    ids = await client.submit_many(prompts(10))
    results = {r.id: r async for r in client.as_completed([*ids, "spoiled"])}
    assert results["spoiled"].status == "failed"
    assert results["spoiled"].failure.startswith("unreadable: the record under result:spoiled")
    assert all(results[request_id].is_success for request_id in ids)


@pytest.mark.usefixtures("worker")
async def test_a_queue_smaller_than_the_window_is_waited_for(client: Client) -> None:
    assert len([r async for r in client.as_completed(prompts(400), window=4096)]) == 400


async def test_a_full_queue_is_told_to_who_does_not_wait(client: Client) -> None:
    await client.submit_many(prompts(50))
    with pytest.raises(QueueFull, match="50 of 50 requests"):
        await client.submit(next(prompts(1)), wait_if_full=False)


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


async def test_too_large_a_request_names_size_limit_and_setting(queue: Queue) -> None:
    client = Client(QueueSettings(max_request_bytes=1024), queue=queue)
    with pytest.raises(
        InvalidRequest,
        match=r"its body has 2,013 bytes; the limit is 1,024 \(GRISTMILL_MAX_REQUEST_BYTES\)",
    ):
        await client.submit({"prompt": "x" * 2000}, endpoint=COMPLETIONS)


@pytest.mark.usefixtures("worker")
async def test_every_call_that_submits_takes_bodies_and_their_fields(client: Client) -> None:
    bodies = [{"prompt": f"p{i}"} for i in range(20)]
    ids = await client.submit_many(bodies, tenant="docs", metadata={"from": "test"})
    results = [r async for r in client.as_completed(ids)]
    results += [r async for r in client.as_completed(bodies, metadata={"from": "test"}, window=4)]
    in_order = [r async for r in client.map(iter(bodies), metadata={"from": "test"})]
    assert len(results) == 40
    assert all(r.metadata == {"from": "test"} for r in results + in_order)
    assert [r.body["choices"][0]["text"] for r in in_order] == [body["prompt"] for body in bodies]


BODY = {"prompt": "p"}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: c.submit(BODY, prioritty="high"), "unknown keyword 'prioritty'; did you mean 'priority'?"),
        (lambda c: c.submit(BODY, wait=False), "unknown keyword 'wait'; did you mean 'wait_if_full'?"),
        (lambda c: c.submit(BODY, priority="urgent"), "unknown priority 'urgent'; use high, normal or low"),
        (lambda c: c.submit("Hello"), "a str is no request; use a dict such as {"),
        (lambda c: c.submit([BODY]), "a list is no request; use a dict"),
        (lambda c: c.submit(next(prompts(1)), tenant="t"), "tenant cannot be set here, because it is a Request already"),
        (lambda c: c.submit({}), "the body has none of messages, prompt, input"),
        (lambda c: c.submit({"prompt": "p"}, endpoint=CHAT), "the body has no 'messages', which /v1/chat/completions needs"),
        (lambda c: c.map([BODY, {"max_tokens": 4}]), "items[1]: the body has none of messages, prompt, input"),
        (lambda c: c.submit({"custom_id": "a", "body": BODY}), "it is a line of a batch file; pass what is under 'body'"),
        (lambda c: c.submit_many([True]), "items[0]: a bool is no request"),
        (lambda c: c.submit_many([BODY] * 200 + ["x"]), "items[200]: a str is no request"),
        (lambda c: c.submit_many([BODY, BODY | {"stream": True}]), "items[1]: the body asks for stream: true"),
        (lambda c: c.submit_many(BODY), "submit_many takes a list or another iterable, not a dict"),
        (lambda c: c.submit_many([BODY], id="one"), "id names one request, and submit_many takes many; give each its own"),
        (lambda c: c.map([BODY], id="one"), "id names one request, and map takes many"),
        (lambda c: c.map([BODY], window="8"), "window is '8'; it is how many requests may be unfinished, a whole number"),
        (lambda c: c.as_completed([BODY], window=True), "window is True"),
        (lambda c: c.as_completed([BODY], window=1.5), "window is 1.5"),
        (lambda c: c.wait("0-a", timeout_s="2"), "timeout_s is '2'; it is a number of seconds, or None for no limit"),
        (lambda c: c.wait("0-a", timeout_s=float("nan")), "timeout_s is nan"),
        (lambda c: c.wait("0-a", timeout_s=10**400), "timeout_s is 1000"),
        (lambda c: c.wait("0-a", timeout_s=10**5000), "timeout_s is a value of type int that cannot be shown"),
        (lambda c: c.map([BODY], window=-(10**5000)), "window is a value of type int"),
        (lambda c: c.submit(BODY, deadline_s=10**5000), "deadline_s and delay_s are seconds"),
        (lambda c: c.submit(BODY, max_attempts=10**5000), "max_attempts is a value of type int"),
        (lambda c: c.submit(BODY | {"id": "mine"}), "the body has an id ('mine'), which no engine reads; pass it as"),
        (lambda c: c.map([BODY, BODY | {"id": 5}]), "items[1]: the body has an id (5)"),
        (lambda c: c.map("Hello"), "map takes a list or another iterable, not a str"),
        (lambda c: c.map([BODY], windw=3), "unknown keyword 'windw'; did you mean 'window'?"),
        (lambda c: c.map(["Hello"]), "items[0]: a str is no request"),
        (lambda c: c.as_completed(None), "as_completed takes a list or another iterable, not a NoneType"),
        (lambda c: c.as_completed(["What is 2 + 2?"]), "items[0]: 'What is 2 + 2?' is no id; an id is what submit returned"),
        (lambda c: c.as_completed(["0-a", BODY]), "items[1]: a dict is no id"),
        (lambda c: c.as_completed([BODY, "0-a"]), "items[1]: a str is no request"),
        (lambda c: c.wait(BODY), "a dict is no id; an id is what submit returned"),
        (lambda c: c.result(["0-a"]), "a list is no id"),
        (lambda c: c.status("0-a"), "ids is a str; use a list of ids, also for one id"),
        (lambda c: c.cancel([BODY]), "ids[0]: a dict is no id"),
    ],
)  # fmt: skip
async def test_a_wrong_argument_is_an_error_in_our_words(
    queue: Queue, redis_url: str, call: Callable[[Any], Any], message: str
) -> None:
    settings = QueueSettings(redis_url=SecretStr(redis_url), queue=queue.keys.queue)

    async def asynchronous() -> None:
        async with Client(settings) as client:
            made = call(client)
            await made if isinstance(made, Awaitable) else [result async for result in made]

    def synchronous() -> None:
        with SyncClient(settings) as client:
            list(call(client))

    with pytest.raises(InvalidRequest, match=re.escape(message)):
        await asynchronous()
    with pytest.raises(InvalidRequest, match=re.escape(message)):
        await asyncio.to_thread(synchronous)


@pytest.mark.parametrize("name", ["submit_many", "map", "as_completed"])
async def test_the_synchronous_twin_refuses_an_asynchronous_source(
    queue: Queue, redis_url: str, name: str
) -> None:
    settings = QueueSettings(redis_url=SecretStr(redis_url), queue=queue.keys.queue)

    async def source() -> AsyncIterator[Request]:
        yield next(prompts(1))

    def run() -> None:
        with SyncClient(settings) as client:
            list(getattr(client, name)(source()))

    with pytest.raises(
        InvalidRequest, match=f"{name} of a SyncClient takes .* not an asynchronous"
    ):
        await asyncio.to_thread(run)


async def test_the_clients_read_the_environment(
    queue: Queue, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.setenv("GRISTMILL_QUEUE", queue.keys.queue)
    async with Client() as client:
        request_id = await client.submit({"prompt": "p"})

    def state() -> str:
        with SyncClient() as client:
            return client.status([request_id])[0][0]

    assert await asyncio.to_thread(state) == "queued"
    monkeypatch.setenv("GRISTMILL_MAX_DEPTH", "none")
    with pytest.raises(SettingsError, match="GRISTMILL_MAX_DEPTH"):
        SyncClient()


async def test_an_error_names_its_request(client: Client) -> None:
    await client.submit({"prompt": "a"}, id="same")
    with pytest.raises(IdConflict) as conflict:
        await client.submit({"prompt": "b"}, id="same")
    assert (conflict.value.request_id, conflict.value.code) == ("same", "id_conflict")
    with pytest.raises(ResultExpired) as expired:
        await client.wait("nobody", 10)
    assert str(expired.value) == f"request nobody: {expired.value.reason}"


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
