"""Workers that serve different models on one queue: each request ends at one that serves its model."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from queues import fresh_queue
from structlog.testing import capture_logs
from workers import local_worker, settings_for

from gristmill.producer import Client
from gristmill.shared.audit import audit
from gristmill.shared.connection import connect
from gristmill.shared.operations import Limits
from gristmill.shared.queue import Queue
from gristmill.shared.request import COMPLETIONS, EMBEDDINGS, Request
from gristmill.shared.settings import QueueSettings
from gristmill.worker.engine import EngineInfo, Response, StubEngine
from gristmill.worker.engine.refusals import error_response


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[Queue]:
    async with fresh_queue(redis_url, Limits(lease_ms=10_000)) as queue:
        yield queue


@pytest.fixture
async def client(queue: Queue, redis_url: str) -> AsyncIterator[Client]:
    unchecked = Queue(connect(redis_url), queue.keys.queue, queue.limits)
    async with Client(QueueSettings(check_models=False), queue=unchecked) as client:
        yield client


class Serving(StubEngine):
    """Serves one model, and answers 404 to requests for another."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self._model = model
        self.num_refused = 0

    async def start(self) -> EngineInfo:
        return replace(await super().start(), models=(self._model,))

    async def post(self, endpoint: str, body: bytes, **options: Any) -> Response:
        if json.loads(body).get("model", self._model) != self._model:
            self.num_refused += 1
            return error_response(404, "The model does not exist.", "NotFoundError")
        return await super().post(endpoint, body, **options)


def asking_for(model: str, number: int = 1) -> list[Request]:
    body = {"prompt": "hi", "max_tokens": 1, "model": model}
    return [Request.from_body(body, endpoint=COMPLETIONS) for _ in range(number)]


async def test_a_request_ends_at_a_worker_that_serves_its_model(
    queue: Queue, client: Client, redis_url: str
) -> None:
    requests = [*asking_for("a", 20), *asking_for("b", 20)]
    settings = settings_for(redis_url, queue, beat_s=0.05)
    wrong = Serving("a")
    with capture_logs() as logs:
        async with local_worker(settings, wrong):
            while not (first := (await queue.stats()).workers):
                await asyncio.sleep(0.01)
            async with local_worker(settings, Serving("b")):
                while len((await queue.stats()).workers) < 2:
                    await asyncio.sleep(0.01)
                await client.submit_many(requests)
                ids = [request.id for request in requests]
                results = [result async for result in client.as_completed(ids)]
                while sum(line["event"] == "worker.models_differ" for line in logs) < 2:
                    await asyncio.sleep(0.01)
    assert {(result.status, result.attempt) for result in results} == {("succeeded", 1)}
    assert await audit(queue) == []
    warned = {
        line["worker"]: list(line["others"].values())
        for line in logs
        if line["event"] == "worker.models_differ"
    }
    assert len(warned) == 2
    assert warned[next(iter(first))] == [["b"]]


@pytest.mark.parametrize("has_other", [True, False])
async def test_a_model_that_nobody_else_serves_ends_with_its_404(
    queue: Queue, client: Client, redis_url: str, has_other: bool
) -> None:
    if has_other:
        await queue.register("other", {"models": "c", "endpoints": COMPLETIONS})
    async with local_worker(settings_for(redis_url, queue), Serving("a")):
        result = await client.wait(await client.submit(asking_for("b")[0]))
    assert (result.status, result.status_code) == ("failed", 404)


@pytest.mark.parametrize(
    ("model", "facts"),
    [
        ("b", {"models": "b", "endpoints": COMPLETIONS}),
        ("", {"models": "b", "endpoints": EMBEDDINGS}),
    ],
)
async def test_a_request_for_another_worker_waits_uncounted(
    queue: Queue, client: Client, redis_url: str, model: str, facts: dict[str, str]
) -> None:
    """The other worker is busy; this one gives the request back again and again."""
    await queue.register("busy", facts)
    body = {"prompt": "hi", "model": model} if model else {"input": "hi"}
    endpoint = COMPLETIONS if model else EMBEDDINGS
    async with local_worker(settings_for(redis_url, queue), Serving("a")):
        request_id = await client.submit(Request.from_body(body, endpoint=endpoint, max_attempts=1))
        while (await queue.stats()).counters.get("released", 0) < 2:
            await asyncio.sleep(0.01)
    assert await queue.results([request_id]) == [None]
    assert (await queue.stats()).counters["queued"] == 1
    assert await audit(queue) == []
