"""A worker whose engine fails everything stops claiming, says why, and tries single requests."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import CommandLine
from prometheus_client import REGISTRY
from queues import fresh_queue
from structlog.testing import capture_logs
from workers import LocalWorker, local_worker, settings_for

from gristmill.producer import Client
from gristmill.shared.audit import audit
from gristmill.shared.connection import connect
from gristmill.shared.operations import Limits
from gristmill.shared.queue import Queue
from gristmill.shared.queue_brakes import read_brakes
from gristmill.shared.request import COMPLETIONS, EMBEDDINGS, Request
from gristmill.shared.results import Result
from gristmill.worker.engine import Response, StubEngine
from gristmill.worker.engine.refusals import error_response
from gristmill.worker.failure_brake import WINDOW

FULL_DISK = error_response(500, "No space left on device", "InternalServerError")
NO_TEMPLATE = error_response(400, "no chat template; the prompt was: secret", "BadRequestError")
MAX_LOST = 100
NUM_REQUESTS = 2000


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[Queue]:
    async with fresh_queue(redis_url, Limits(lease_ms=10_000)) as queue:
        yield queue


@pytest.fixture
async def client(queue: Queue, redis_url: str) -> AsyncIterator[Client]:
    async with Client(queue=Queue(connect(redis_url), queue.keys.queue, queue.limits)) as client:
        yield client


@pytest.fixture
def start(queue: Queue, redis_url: str) -> Callable[..., Any]:
    """Start a worker with an engine that has a fault, or none."""

    def started(engine: StubEngine, fault: Response | None = None, **fields: Any) -> Any:
        engine.fault = fault
        pauses = {"backoff_base_s": 0.02, "backoff_max_s": 0.1, "beat_s": 0.1}
        return local_worker(settings_for(redis_url, queue, **(pauses | fields)), engine)

    return started


def prompts(number: int, max_tokens: int = 2, **fields: Any) -> list[Request]:
    """Return good requests; with `max_tokens` 0, bad ones."""
    body = {"prompt": "word", "max_tokens": max_tokens}
    return [Request.from_body(body, endpoint=COMPLETIONS, **fields) for _ in range(number)]


async def submit(queue: Queue, requests: list[Request]) -> list[str]:
    for first in range(0, len(requests), 500):
        await queue.submit(requests[first : first + 500])
    return [request.id for request in requests]


async def collect(client: Client, ids: list[str]) -> list[Result]:
    return [result async for result in client.as_completed(ids)]


async def until_braked(worker: LocalWorker) -> None:
    while worker.liveness.brake is None:
        await asyncio.sleep(0.005)


async def until_tried(engine: StubEngine, number: int) -> None:
    """Wait until a broken engine has got so many more requests."""
    seen = engine.num_faults
    while engine.num_faults < seen + number:
        await asyncio.sleep(0.005)


async def num_ended(queue: Queue, status: str) -> int:
    return (await queue.stats()).counters.get(status, 0)


@pytest.mark.parametrize("policy", ["continuous", "static", "bucketed"])
async def test_broken_engine_leaves_the_queue_to_itself_healed(
    queue: Queue, client: Client, start: Callable[..., Any], policy: str
) -> None:
    ids = await submit(queue, prompts(NUM_REQUESTS))
    engine = StubEngine()
    async with start(engine, FULL_DISK, batch_policy=policy, batch_size=64) as worker:
        await until_braked(worker)
        await until_tried(engine, 10)
        assert await num_ended(queue, "failed") < MAX_LOST
        assert await num_ended(queue, "succeeded") == 0
        engine.fault = None
        results = await collect(client, ids)
        assert worker.liveness.brake is None
    assert len(results) == NUM_REQUESTS
    assert sum(result.status == "failed" for result in results) < MAX_LOST
    assert await audit(queue) == []


async def test_healthy_worker_finishes_the_rest(
    queue: Queue, client: Client, start: Callable[..., Any]
) -> None:
    ids = await submit(queue, prompts(NUM_REQUESTS))
    async with start(StubEngine(), FULL_DISK) as broken:
        await until_braked(broken)
        async with start(StubEngine()):
            results = await collect(client, ids)
        assert broken.liveness.brake
    assert sum(result.status == "failed" for result in results) < MAX_LOST


async def test_wrong_template_loses_only_the_window_of_a_mixed_load(
    queue: Queue, client: Client, start: Callable[..., Any]
) -> None:
    """A 4xx is final at once, so this shows that requests in flight at the closing are spared."""
    ids = await submit(queue, prompts(1000, tenant="a") + prompts(1000, tenant="b"))
    engine = StubEngine()
    async with start(engine, NO_TEMPLATE, backoff_base_s=60.0, backoff_max_s=60.0) as worker:
        await until_braked(worker)
        while (await queue.stats()).counters["in_flight"]:
            await asyncio.sleep(0.005)
        num_failed = await num_ended(queue, "failed")
        assert num_failed <= WINDOW
        assert (await queue.stats()).counters["queued"] == NUM_REQUESTS - num_failed
    async with start(StubEngine()):
        results = await collect(client, ids)
    assert sum(result.status == "failed" for result in results) == num_failed
    assert {result.attempt for result in results} == {1}


@pytest.mark.parametrize("num_good", [0, 500])
async def test_bad_lines_of_one_user_do_not_close_it(
    queue: Queue, client: Client, start: Callable[..., Any], num_good: int
) -> None:
    bad = prompts(500, max_tokens=-1, tenant="bad", batch="file-1")
    good = prompts(num_good, tenant="good")
    ids = await submit(queue, bad + good)
    with capture_logs() as logs:
        async with start(StubEngine(), backoff_base_s=60.0, backoff_max_s=60.0):
            results = await collect(client, ids)
    assert sum(result.status == "failed" for result in results) == 500
    assert [line for line in logs if line["event"] == "worker.braked"] == []


async def test_refusals_of_the_worker_do_not_close_it(
    queue: Queue, client: Client, start: Callable[..., Any]
) -> None:
    unserved = [
        Request.from_body({"input": "word"}, endpoint=EMBEDDINGS, tenant=tenant)
        for tenant in ("a", "b")
        for _ in range(100)
    ]
    ids = await submit(queue, unserved)
    async with start(StubEngine(), backoff_base_s=60.0, backoff_max_s=60.0) as worker:
        assert {result.status for result in await collect(client, ids)} == {"failed"}
        assert worker.liveness.brake is None


async def test_worker_errors_brake_it(queue: Queue, start: Callable[..., Any]) -> None:
    class Raising(StubEngine):
        async def post(self, endpoint: str, body: bytes, **options: Any) -> Response:
            raise OSError(28, "No space left on device")

    await submit(queue, prompts(200))
    async with start(Raising(), backoff_base_s=60.0, backoff_max_s=60.0) as worker:
        await until_braked(worker)
        assert worker.liveness.brake.kind == "worker_error OSError"
    assert await num_ended(queue, "failed") == 0


async def test_what_runs_ends_and_does_not_open_it(
    queue: Queue, client: Client, start: Callable[..., Any]
) -> None:
    engine = StubEngine(token_delay_s=0.005)
    slow = await submit(queue, prompts(10, max_tokens=100))
    async with start(engine, backoff_base_s=60.0, backoff_max_s=60.0) as worker:
        while engine.stats().running < 10:
            await asyncio.sleep(0.001)
        engine.fault = FULL_DISK
        await submit(queue, prompts(100))
        await until_braked(worker)
        assert engine.stats().running == 10
        assert {result.status for result in await collect(client, slow)} == {"succeeded"}
        assert worker.liveness.brake


async def test_drain_in_a_pause_is_prompt(queue: Queue, start: Callable[..., Any]) -> None:
    await submit(queue, prompts(200))
    async with start(StubEngine(), FULL_DISK, backoff_base_s=60.0, backoff_max_s=60.0) as worker:
        await until_braked(worker)
        started_at = time.monotonic()
        await worker.stop()
        assert time.monotonic() - started_at < 5
    assert (await queue.stats()).counters["queued"] == 200


async def test_it_says_why(
    queue: Queue, redis_url: str, start: Callable[..., Any], tmp_path: Path
) -> None:
    shell = CommandLine(redis_url, queue.keys.queue, tmp_path)
    ids = await submit(queue, prompts(200))
    engine = StubEngine()
    with capture_logs() as logs:
        async with start(engine, FULL_DISK) as worker:
            await until_braked(worker)
            assert worker.liveness.stalled_reason() is None
            assert "500 InternalServerError: No space left" in worker.liveness.unready_reason()
            assert REGISTRY.get_sample_value("gristmill_worker_braked") == 1
            (name,) = (await queue.stats()).workers
            while not (brakes := await read_brakes(queue.redis, queue.keys, [name])):
                await asyncio.sleep(0.01)
            assert brakes[name].kind == "500 InternalServerError"
            assert await queue.redis.pttl(queue.keys.worker(name)) > 0
            shown = await shell.finish("queue", "stats")
            assert "    braked: 20 of the last 20 requests failed with 500 Int" in shown.out
            programs = await shell.finish("queue", "stats", "--json")
            assert programs.rows[0]["brakes"][name]["example_id"] in ids
            engine.fault = None
            while await read_brakes(queue.redis, queue.keys, [name]):
                await asyncio.sleep(0.01)
            assert worker.liveness.unready_reason() is None
            assert REGISTRY.get_sample_value("gristmill_worker_braked") == 0
    (braked,) = [line for line in logs if line["event"] == "worker.braked"]
    assert (braked["num_failed"], braked["num_outcomes"]) == (20, 20)
    assert (braked["message"], braked["pause_s"]) == ("No space left on device", 0.02)
    (unbraked,) = [line for line in logs if line["event"] == "worker.unbraked"]
    assert unbraked["reason"] == "a request succeeded"


async def test_message_of_a_4xx_is_told_to_nobody(queue: Queue, start: Callable[..., Any]) -> None:
    """It may quote the prompt; the example's result has it."""
    await submit(queue, prompts(50, tenant="a") + prompts(50, tenant="b"))
    with capture_logs() as logs:
        async with start(StubEngine(), NO_TEMPLATE, backoff_base_s=60.0) as worker:
            await until_braked(worker)
    assert "secret" not in str(logs)
    (result,) = await queue.results([worker.liveness.brake.example_id])
    assert result is not None
    assert "secret" in str(result.body)


async def test_a_new_lease_shows_the_brake_again(queue: Queue, start: Callable[..., Any]) -> None:
    await submit(queue, prompts(200))
    async with start(StubEngine(), FULL_DISK, backoff_base_s=60.0, backoff_max_s=60.0) as worker:
        await until_braked(worker)
        (first,) = (await queue.stats()).workers
        await queue.redis.zrem(queue.keys.workers, first)
        while not await read_brakes(
            queue.redis, queue.keys, set((await queue.stats()).workers) - {first}
        ):
            await asyncio.sleep(0.01)


async def test_tries_alternate_between_tenants_so_a_wrong_template_keeps_it_braked(
    queue: Queue, start: Callable[..., Any]
) -> None:
    await submit(queue, prompts(500, tenant="a") + prompts(500, tenant="b"))
    engine = StubEngine()
    with capture_logs() as logs:
        async with start(engine, NO_TEMPLATE) as worker:
            await until_braked(worker)
            await until_tried(engine, 15)
    assert [line for line in logs if line["event"] == "worker.unbraked"] == []
