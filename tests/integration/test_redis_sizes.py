"""What Redis refuses for its size ends alone and by name: results, requests, and elements of the inbox."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from uuid import uuid4

import orjson
import pytest
from queues import a_request, some_requests
from workers import local_worker, settings_for

from gristmill.local.redis_server import running_server
from gristmill.producer import Client, InvalidRequest
from gristmill.shared.audit import audit
from gristmill.shared.connection import connect
from gristmill.shared.operations import Limits
from gristmill.shared.queue import Queue
from gristmill.worker.engine import StubEngine

SETTINGS = ("proto-max-bulk-len", "client-query-buffer-limit")

THREE_MEGABYTES = orjson.dumps({"prompt": "w" * 1023, "max_tokens": 3000})
"""Body of a request to which the stub answers so much."""


@pytest.fixture(scope="module")
def own_redis_url() -> Iterator[str]:
    with running_server() as url:
        yield url


@pytest.fixture(params=SETTINGS)
async def queue(own_redis_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Queue]:
    """A queue on a Redis one of whose limits is 1 MiB, the least that Redis allows."""
    redis = connect(own_redis_url)
    queue = Queue(redis, f"test-{uuid4().hex[:12]}", Limits(lease_ms=10_000))
    for setting in SETTINGS:
        await redis.config_set(setting, "1mb" if setting == request.param else "512mb")
    yield queue
    await redis.aclose()


async def test_result_that_redis_refuses_ends_as_too_large_and_holds_up_no_other(
    queue: Queue, own_redis_url: str
) -> None:
    requests = [*some_requests(8), a_request("big", body=THREE_MEGABYTES), *some_requests(8)]
    await queue.submit(requests)
    settings = settings_for(own_redis_url, queue)
    async with (
        Client(queue=Queue(connect(own_redis_url), queue.keys.queue, queue.limits)) as client,
        local_worker(settings, StubEngine()) as worker,
    ):
        results = {request.id: await client.wait(request.id, 30) for request in requests}
        assert worker.liveness.unready_reason() is None
        assert await worker.stop() is None
    big = results.pop("big")
    assert (big.status, big.status_code, big.attempt) == ("failed", 413, 1)
    assert big.body["error"]["type"] == "ResultTooLargeError"
    assert "proto-max-bulk-len" in big.body["error"]["message"]
    assert {result.status for result in results.values()} == {"succeeded"}
    assert await audit(queue) == []


async def test_results_that_are_too_large_together_are_written_alone(
    queue: Queue, own_redis_url: str
) -> None:
    """Each has 800 KB, so that none is refused alone."""
    body = orjson.dumps({"prompt": "w" * 1023, "max_tokens": 800})
    requests = [a_request(body=body) for _ in range(4)]
    await queue.submit(requests)
    async with (
        Client(queue=Queue(connect(own_redis_url), queue.keys.queue, queue.limits)) as client,
        local_worker(settings_for(own_redis_url, queue), StubEngine(token_delay_s=1e-5)),
    ):
        for request in requests:
            assert (await client.wait(request.id, 30)).is_success


async def test_request_that_redis_refuses_raises_and_its_neighbours_are_submitted(
    queue: Queue, own_redis_url: str
) -> None:
    large = a_request("large", body=b'{"prompt":"' + b"x" * 3_000_000 + b'"}')
    async with Client(
        queue=Queue(connect(own_redis_url), queue.keys.queue, queue.limits)
    ) as client:
        with pytest.raises(InvalidRequest, match=r"items\[1\]: Redis refuses a call of 3,000,"):
            await client.submit_many([a_request("before"), large, a_request("after")])
    assert (await queue.status(["before", "large"])) == [("queued", ""), ("unknown", "")]


async def test_element_whose_request_redis_refuses_becomes_a_dead_letter(
    queue: Queue, own_redis_url: str
) -> None:
    """It came while Redis took more."""
    limits = {name: (await queue.redis.config_get(name))[name] for name in SETTINGS}
    for setting in SETTINGS:
        await queue.redis.config_set(setting, "512mb")
    await queue.redis.rpush(queue.keys.inbox, b'{"prompt":"' + b"x" * 1_500_000 + b'"}')
    for setting in SETTINGS:
        await queue.redis.config_set(setting, str(limits[setting]))
    await queue.redis.rpush(queue.keys.inbox, b'{"id":"innocent","prompt":"x"}')
    async with local_worker(settings_for(own_redis_url, queue), StubEngine()):
        while not (await queue.results(["innocent"]))[0]:
            await asyncio.sleep(0.01)
    (letter,) = await queue.dead_letters.newest()
    assert "Redis refuses a call of 1,500,0" in letter.evidence["error"]
