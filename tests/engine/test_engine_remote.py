"""Test how the remote engine judges failures, with a small server that fails on demand."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from gristmill.shared.errors import EngineDied, EngineError, EngineHungUp, EngineUnavailable
from gristmill.worker.engine import RemoteEngine
from gristmill.worker.engine.interface import RunLimits

CHAT = "/v1/chat/completions"
BODY = b'{"model": "m", "messages": []}'
ANSWER = {"choices": [{"finish_reason": "stop"}], "usage": {"prompt_tokens": 3}}


class Server:
    """An OpenAI-compatible server whose answers a test may change."""

    def __init__(self) -> None:
        self.health, self.status, self.fields = 200, 200, dict[str, Any](ANSWER)
        self.content_type, self.headers = "application/json", dict[str, str]()
        self.is_hanging_up = self.is_endless = False
        self.models: Any = {"data": [{"id": "m", "max_model_len": 99}, {"id": "lora"}]}
        self.seen: list[tuple[Any, str | None]] = []
        self.arrived, self.abandoned = asyncio.Event(), asyncio.Event()
        self.release = asyncio.Event()
        self.release.set()

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post(CHAT, self._chat)
        return app

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=self.health)

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response(self.models)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        self.seen.append((await request.json(), request.headers.get("authorization")))
        self.arrived.set()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.abandoned.set()
            raise
        if self.is_endless:
            return await self._endless(request)
        if self.is_hanging_up and request.transport is not None:
            request.transport.abort()
        body = json.dumps(self.fields)
        return web.Response(
            status=self.status,
            text=body,
            content_type=self.content_type,
            headers=self.headers,
        )

    async def _endless(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"content-type": "application/json"})
        await answer.prepare(request)
        try:
            while True:
                await answer.write(b" " * 2**16)
        except (ConnectionError, asyncio.CancelledError):
            self.abandoned.set()
            raise


@pytest_asyncio.fixture
async def server() -> Server:
    return Server()


@pytest_asyncio.fixture
async def url(server: Server) -> AsyncIterator[str]:
    runner = web.AppRunner(server.app(), handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    yield f"http://{host}:{port}"
    server.release.set()
    await runner.cleanup()


@pytest_asyncio.fixture
async def engine(url: str) -> AsyncIterator[RemoteEngine]:
    engine = RemoteEngine(url, "secret", max_num_seqs=7)
    await engine.start()
    yield engine
    await engine.close()


async def test_start_describes_the_server(url: str) -> None:
    engine = RemoteEngine(f"{url}/v1/", max_num_seqs=7)
    info = await engine.start()
    assert (info.transport, info.models, info.max_model_len) == ("remote", ("m", "lora"), 99)
    assert info.max_num_seqs == 7
    assert CHAT in info.endpoints
    await engine.close()
    await engine.close()


async def test_start_gives_up_on_a_server_that_stays_unhealthy(server: Server, url: str) -> None:
    server.health = 503
    with pytest.raises(EngineDied, match="no healthy server"):
        await RemoteEngine(url, start_timeout_s=0).start()


@pytest.mark.parametrize(
    "models",
    [{"data": "abc"}, {"data": [1]}, {"data": [{}]}, {"data": [{"id": 7}]}, {"data": {}}, {}, [], 1],
)  # fmt: skip
async def test_start_tells_that_a_server_names_no_model(
    server: Server, url: str, models: Any
) -> None:
    server.models = models
    with pytest.raises(EngineDied, match="names no model"):
        await RemoteEngine(url).start()


async def test_of_an_endless_answer_no_more_is_read_than_a_result_may_have(
    server: Server, url: str
) -> None:
    server.is_endless = True
    engine = RemoteEngine(url, limits=RunLimits(max_result_bytes=100_000))
    await engine.start()
    response = await engine.post(CHAT, BODY)
    assert response.status == 413
    assert "more than 100,000 bytes" in json.loads(response.body)["error"]["message"]
    await server.abandoned.wait()
    await engine.close()


async def test_body_and_key_are_sent_and_the_answer_kept(
    server: Server, engine: RemoteEngine
) -> None:
    response = await engine.post(CHAT, BODY)
    assert json.loads(response.body) == ANSWER
    assert (response.finish_reason, response.prompt_tokens) == ("stop", 3)
    assert server.seen == [(json.loads(BODY), "Bearer secret")]


async def test_priority_goes_into_the_body(server: Server, engine: RemoteEngine) -> None:
    await engine.post(CHAT, BODY, priority=-2)
    assert server.seen[0][0]["priority"] == -2


@pytest.mark.parametrize(
    ("status", "is_refusal"), [(429, True), (502, False), (503, True), (504, False)]
)
async def test_overload_is_unavailable(
    server: Server, engine: RemoteEngine, status: int, is_refusal: bool
) -> None:
    server.status, server.headers = status, {"retry-after": "7"}
    with pytest.raises(EngineUnavailable, match=f"answered {status}") as raised:
        await engine.post(CHAT, BODY)
    assert (raised.value.is_refusal, raised.value.retry_after_s) == (is_refusal, 7)


@pytest.mark.parametrize("status", [400, 404, 422, 500])
async def test_error_of_a_living_server_is_the_requests_own(
    server: Server, engine: RemoteEngine, status: int
) -> None:
    server.status = status
    assert (await engine.post(CHAT, BODY)).status == status


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_not_followed_to_somebody_elses_answer(
    server: Server, engine: RemoteEngine, status: int
) -> None:
    server.status = status
    response = await engine.post(CHAT, BODY)
    assert (response.status, b"set VLLM_URL to" in response.body) == (500, True)
    assert len(server.seen) == 1


async def test_500_of_a_dying_server_is_a_death(server: Server, engine: RemoteEngine) -> None:
    server.status, server.health = 500, 503
    with pytest.raises(EngineDied):
        await engine.post(CHAT, BODY)


@pytest.mark.parametrize(("health", "error"), [(200, EngineHungUp), (503, EngineDied)])
async def test_broken_connection_is_judged_by_health(
    server: Server, engine: RemoteEngine, health: int, error: type[Exception]
) -> None:
    server.is_hanging_up, server.health = True, health
    with pytest.raises(error, match="broke while a request ran"):
        await engine.post(CHAT, BODY)


async def test_connections_that_break_together_accuse_nobody(
    server: Server, engine: RemoteEngine
) -> None:
    """Otherwise one request that makes a server drop all connections would fail its neighbours."""
    server.release.clear()
    posts = [asyncio.create_task(engine.post(CHAT, BODY)) for _ in range(5)]
    while len(server.seen) < len(posts):
        await asyncio.sleep(0.01)
    server.is_hanging_up = True
    server.release.set()
    errors = await asyncio.gather(*posts, return_exceptions=True)
    assert [type(error) for error in errors] == [EngineUnavailable] * len(posts)


async def test_abort_nobody_asked_for_is_no_answer(server: Server, engine: RemoteEngine) -> None:
    server.fields = {"choices": [{"finish_reason": "stop"}, {"finish_reason": "abort"}]}
    with pytest.raises(EngineUnavailable, match="aborted"):
        await engine.post(CHAT, BODY)


async def test_stream_is_refused_even_if_the_server_begins_one(
    server: Server, engine: RemoteEngine
) -> None:
    server.content_type = "text/event-stream"
    response = await engine.post(CHAT, BODY)
    assert (response.status, json.loads(response.body)["error"]["param"]) == (400, "stream")


async def test_server_gone_after_the_start_is_unavailable(server: Server) -> None:
    runner = web.AppRunner(server.app())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    engine = RemoteEngine(f"http://{host}:{port}")
    await engine.start()
    await runner.cleanup()
    with pytest.raises(EngineError):  # the idle connection broke; who knows how far the body got
        await engine.post(CHAT, BODY)
    with pytest.raises(EngineUnavailable, match="unreachable"):
        await engine.post(CHAT, BODY)
    with pytest.raises(EngineDied):
        await engine.check(5)
    await engine.close()


async def test_cancelling_closes_the_connection(server: Server, engine: RemoteEngine) -> None:
    server.release.clear()
    posted = asyncio.create_task(engine.post(CHAT, BODY))
    await server.arrived.wait()
    posted.cancel()
    with pytest.raises(asyncio.CancelledError):
        await posted
    await server.abandoned.wait()
