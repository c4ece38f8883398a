"""Run requests through a worker on servers that are not vLLM: one that offers only what OpenAI's API says, and
`transformers serve`."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.typedefs import Middleware
from queues import fresh_queue
from structlog.testing import capture_logs
from workers import local_worker, settings_for

from gristmill.local.processes import die_with_parent, free_port
from gristmill.producer import Client
from gristmill.shared.audit import audit
from gristmill.shared.connection import connect
from gristmill.shared.queue import Queue
from gristmill.shared.request import CHAT, COMPLETIONS, Request
from gristmill.shared.results import Result
from gristmill.worker.engine import Engine
from gristmill.worker.engine.factory import engine_from
from gristmill.worker.settings import WorkerSettings

KEY = "s3cr3tkey"
MODEL = "small"
KNOWN = {"model", "messages", "max_completion_tokens", "n", "temperature"}
"""Fields of a body that the plain server knows; as OpenAI's, it refuses others."""

CARD = {"id": MODEL, "object": "model", "created": 1_700_000_000, "owned_by": "somebody"}


def error(status: int, message: str, **fields: Any) -> web.Response:
    body = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return web.json_response({"error": body | fields}, status=status)


async def models(_: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": [CARD]})


async def chat(request: web.Request) -> web.Response:
    body = await request.json()
    if unknown := sorted(body.keys() - KNOWN):
        return error(400, f"Unknown parameter: {unknown[0]!r}", param=unknown[0])
    if body["model"] != MODEL:
        return error(404, "The model does not exist", code="model_not_found")
    message = {"role": "assistant", "content": body["messages"][-1]["content"], "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    answer = {"id": "c", "object": "chat.completion", "created": 1_700_000_000, "model": MODEL}
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    return web.json_response(answer | {"choices": [choice], "usage": usage})


@web.middleware
async def with_key(request: web.Request, handler: Any) -> web.StreamResponse:
    if request.headers.get("authorization") != f"Bearer {KEY}":
        return error(401, "Incorrect API key provided", code="invalid_api_key")
    answer: web.StreamResponse = await handler(request)
    return answer


class SlowServer:
    """Answers no chat before its release, and counts those that it runs now and at most."""

    def __init__(self) -> None:
        self.num_running = self.most = 0
        self.release = asyncio.Event()

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/v1/models", models), web.post(CHAT, self._chat)]

    async def _chat(self, request: web.Request) -> web.Response:
        self.num_running += 1
        self.most = max(self.most, self.num_running)
        await self.release.wait()
        self.num_running -= 1
        return await chat(request)


@asynccontextmanager
async def served(routes: list[web.RouteDef], *middlewares: Middleware) -> AsyncIterator[str]:
    """Serve routes; yields the base URL."""
    app = web.Application(middlewares=middlewares)
    app.add_routes(routes)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    await runner.cleanup()


@pytest.fixture
async def plain_server() -> AsyncIterator[str]:
    """Return the URL of a server with two routes and an API key, and without /health."""
    async with served([web.get("/v1/models", models), web.post(CHAT, chat)], with_key) as url:
        yield url


@pytest.fixture(scope="session")
def transformers_server(
    model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Path]]:
    """Return the URL and the log of `transformers serve`, which loads the tiny model for its first request."""
    port, folder = free_port(), tmp_path_factory.mktemp("transformers")
    script = str(Path(sys.executable).with_name("transformers"))
    command = [script, "serve", str(model_dir), "--host", "127.0.0.1", "--port", str(port)]
    log = folder / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [*command, "--device", "cpu"],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder)},
            preexec_fn=die_with_parent,  # noqa: PLW1509  # one C call, no locks
        )
    yield f"http://127.0.0.1:{port}", log
    server.terminate()
    server.wait()


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[Queue]:
    async with fresh_queue(redis_url) as queue:
        yield queue


@asynccontextmanager
async def engine_until_close(settings: WorkerSettings) -> AsyncIterator[Engine]:
    engine = engine_from(settings, [])
    try:
        yield engine
    finally:
        await engine.close()


@asynccontextmanager
async def client_of_worker(redis_url: str, queue: Queue, **fields: str) -> AsyncIterator[Client]:
    """Run a worker with the settings `fields`; yields a client of its queue."""
    settings = settings_for(redis_url, queue, **fields)
    async with (
        engine_until_close(settings) as engine,
        local_worker(settings, engine),
        Client(queue=Queue(connect(redis_url), queue.keys.queue, queue.limits)) as client,
    ):
        yield client


def said(text: str, **fields: Any) -> Request:
    body = {"messages": [{"role": "user", "content": text}]}
    options = {name: fields.pop(name) for name in ("priority",) if name in fields}
    return Request.from_body(body | fields, endpoint=CHAT, **options)


async def results_of(client: Client, requests: list[Request]) -> list[Result]:
    ids = await client.submit_many(requests)
    found = {result.id: result async for result in client.as_completed(ids)}
    return [found[each] for each in ids]


async def test_server_with_two_routes_answers_each_request(
    redis_url: str, queue: Queue, plain_server: str
) -> None:
    requests = [
        said(f"word{i}", model=MODEL, priority=("high", "normal", "low")[i % 3]) for i in range(30)
    ]
    server = {"vllm_url": plain_server, "vllm_api_key": KEY}
    with capture_logs() as logs:
        async with client_of_worker(redis_url, queue, **server) as client:
            results = await results_of(client, requests)
            (unknown,) = await results_of(client, [said("hi", model=MODEL, top_k=3)])
            (elsewhere,) = await results_of(
                client, [Request.from_body({"prompt": "hi"}, endpoint=COMPLETIONS)]
            )
    texts = [result.text for result in results]
    assert texts == [f"word{i}" for i in range(30)]
    assert {result.status for result in results} == {"succeeded"}
    assert (unknown.status, unknown.status_code) == ("failed", 400)
    assert (elsewhere.status, elsewhere.status_code) == ("failed", 404)
    missing = [line["fact"] for line in logs if line["event"] == "engine.fact_missing"]
    assert sorted(missing) == [
        "body_schemas",
        "endpoints",
        "health",
        "max_model_len",
        "max_num_seqs",
        "server_kind",
    ]
    assert KEY not in str(logs)
    assert await audit(queue) == []


@pytest.mark.parametrize("refill", ["1", "8"])
async def test_server_gets_as_many_requests_as_the_setting_says(
    redis_url: str, queue: Queue, refill: str
) -> None:
    """The worker once took 256 for the size of each server, and with gulps sent no more."""
    server = SlowServer()
    settings = {"max_in_flight": "300", "refill": refill}
    async with (
        served(server.routes()) as url,
        client_of_worker(redis_url, queue, vllm_url=url, **settings) as client,
    ):
        ids = await client.submit_many([said(f"word{i}", model=MODEL) for i in range(600)])
        while server.num_running < 300:
            await asyncio.sleep(0.01)
        server.release.set()
        assert len([result async for result in client.as_completed(ids)]) == 600
    assert server.most == 300


async def test_transformers_serve_answers_each_request(
    redis_url: str, queue: Queue, transformers_server: tuple[str, Path], model_dir: Path
) -> None:
    """Its list of models is empty, it refuses a field `priority`, and it names the model by its folder."""
    url, log = transformers_server
    model = str(model_dir)
    requests = [
        said(f"word{i}", model=model, max_tokens=4, priority=("high", "low")[i % 2])
        for i in range(8)
    ]
    requests += [
        Request.from_body({"model": model, "prompt": "hi", "max_tokens": 3}, endpoint=COMPLETIONS)
    ]
    async with client_of_worker(redis_url, queue, vllm_url=url, max_in_flight="2") as client:
        results = await results_of(client, requests)
    assert {result.status for result in results} == {"succeeded"}, log.read_text()[-3000:]
    assert [result.tokens[1] for result in results] == [4] * 8 + [3]
    assert await audit(queue) == []
