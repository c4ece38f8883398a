"""Test how the remote engine judges failures, with a small server that fails on demand."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from structlog.testing import capture_logs

from gristmill.shared.errors import (
    EngineDied,
    EngineError,
    EngineHungUp,
    EngineUnavailable,
    SettingsError,
)
from gristmill.shared.request import ENDPOINTS
from gristmill.worker.engine import RemoteEngine
from gristmill.worker.engine.factory import engine_from
from gristmill.worker.engine.interface import RunLimits
from gristmill.worker.settings import WorkerSettings

CHAT = "/v1/chat/completions"
BODY = b'{"model": "m", "messages": []}'
ANSWER = {"choices": [{"finish_reason": "stop"}], "usage": {"prompt_tokens": 3}}


def card(**fields: Any) -> dict[str, Any]:
    return {"id": "m", "owned_by": "vllm"} | fields


class Server:
    """An OpenAI-compatible server whose answers a test may change."""

    def __init__(self) -> None:
        self.health, self.status, self.fields = 200, 200, dict[str, Any](ANSWER)
        self.content_type, self.headers = "application/json", dict[str, str]()
        self.health_path, self.asked = "/health", list[str]()
        self.is_hanging_up = self.is_endless = False
        self.base_path, self.model_list = "", 200
        self.endless_paths: tuple[str, ...] = ()
        self.models: Any = {"data": [card(max_model_len=99), {"id": "lora"}]}
        self.documents: dict[str, str | None] = {"/version": '{"version": "9.9"}'}
        self.seen: list[tuple[Any, str | None]] = []
        self.arrived, self.abandoned = asyncio.Event(), asyncio.Event()
        self.release = asyncio.Event()
        self.release.set()

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._get)
        app.router.add_post("/{path:.*}", self._post)
        return app

    async def _get(self, request: web.Request) -> web.StreamResponse:
        path = request.path.removeprefix(self.base_path)
        self.asked.append(path)
        if path in {"/health", "/alive"}:
            return web.Response(status=self.health if path == self.health_path else 404)
        if path in self.endless_paths:
            return await self._endless(request)
        if path == "/v1/models" and path not in self.documents:
            return web.json_response(self.models, status=self.model_list)
        if path not in self.documents:
            return web.Response(status=404)
        text = self.documents[path]
        if text is None and request.transport:
            request.transport.abort()
        return web.Response(text=text)

    async def _post(self, request: web.Request) -> web.StreamResponse:
        if request.path != self.base_path + CHAT:
            return web.Response(status=404)
        return await self._chat(request)

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
async def test_server_without_a_list_of_models_serves_any(
    server: Server, url: str, models: Any
) -> None:
    server.models = models
    await check_started(
        url, models=(), missing={"models", "endpoints", "body_schemas", "server_kind"}
    )


async def test_list_of_models_that_fails_is_no_list(server: Server, url: str) -> None:
    server.models, server.model_list = {"detail": "no cache"}, 500
    await check_started(
        url, models=(), missing={"models", "endpoints", "body_schemas", "server_kind"}
    )


@pytest.mark.parametrize("length", [None, "99", -1, 1.5, True, [1]])
async def test_length_that_is_no_number_is_unknown(server: Server, url: str, length: Any) -> None:
    server.models = {"data": [card(max_model_len=length)]}
    await check_started(
        url, max_model_len=0, missing={"max_model_len", "endpoints", "body_schemas"}
    )


@pytest.mark.parametrize("text", ["<html>", "[]", "1", "", '{"version": 3}', None])
@pytest.mark.parametrize("path", ["/version", "/openapi.json"])
async def test_document_that_is_none_is_unknown(
    server: Server, url: str, path: str, text: str | None
) -> None:
    server.documents[path] = text
    version = "" if path == "/version" else "9.9"
    await check_started(
        url, vllm_version=version, endpoints=ENDPOINTS, missing={"endpoints", "body_schemas"}
    )


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000 + "]" * 100_000,
        '{"data":' + "[" * 600 + "]" * 600 + ', "paths": {}}',
        '{"data": [{"id": "\\ud800"}], "paths": {"\\ud800": {}}}',
        '{"data": [], "paths": ' + '{"a":' * 5000 + "1" + "}" * 5001,
    ],
    ids=["deep_list", "deeper_than_written", "lone_surrogate", "deep_object"],
)
@pytest.mark.parametrize("path", ["/v1/models", "/openapi.json"])
async def test_document_that_cannot_be_read_is_unknown(
    server: Server, url: str, path: str, text: str
) -> None:
    server.documents[path] = text
    missing = {"endpoints", "body_schemas"}
    await check_started(
        url, missing=missing | ({"models", "server_kind"} if path == "/v1/models" else set())
    )


@pytest.mark.parametrize("path", ["/v1/models", "/openapi.json"])
async def test_of_an_endless_document_only_the_beginning_is_read(
    server: Server, url: str, path: str
) -> None:
    server.endless_paths = (path,)
    missing = {"endpoints", "body_schemas"}
    await check_started(
        url, missing=missing | ({"models", "server_kind"} if path == "/v1/models" else set())
    )
    await server.abandoned.wait()


async def test_name_longer_than_a_request_may_have_is_no_model(server: Server, url: str) -> None:
    server.models = {"data": [card(max_model_len=9), {"id": "x" * 257}]}
    await check_started(url, models=("m",), missing={"endpoints", "body_schemas"})


async def test_document_tells_the_endpoints(server: Server, url: str) -> None:
    server.documents["/openapi.json"] = json.dumps({"paths": {CHAT: {}, "/pause": {}}})
    await check_started(url, endpoints=(CHAT,), missing={"body_schemas"})


async def test_document_of_another_api_tells_no_endpoints(server: Server, url: str) -> None:
    server.documents["/openapi.json"] = json.dumps({"paths": {"/api/{path}": {}}})
    await check_started(url, endpoints=ENDPOINTS, missing={"endpoints", "body_schemas"})


async def test_document_may_tell_schemas_of_the_bodies(server: Server, url: str) -> None:
    body = {"content": {"application/json": {"schema": {"type": "object"}}}}
    paths = {CHAT: {"post": {"requestBody": body}}}
    server.documents["/openapi.json"] = json.dumps({"openapi": "3.1.0", "paths": paths})
    await check_started(url, endpoints=(CHAT,), missing=set())


@pytest.mark.parametrize(
    ("max_in_flight", "max_num_seqs", "is_told"), [(None, 256, True), (4, 256, False), (512, 512, False)]
)  # fmt: skip
async def test_size_of_a_server_is_assumed_only_without_a_setting(
    url: str, max_in_flight: int | None, max_num_seqs: int, is_told: bool
) -> None:
    engine = engine_from(WorkerSettings(vllm_url=url, max_in_flight=max_in_flight), [])
    with capture_logs() as logs:
        info = await engine.start()
    await engine.close()
    assert info.max_num_seqs == max_num_seqs
    assert any(line.get("fact") == "max_num_seqs" for line in logs) == is_told


async def test_only_vllm_is_asked_for_its_version_and_given_a_priority(
    server: Server, url: str
) -> None:
    """Other servers refuse an unknown field, or serve a higher number first."""
    server.models = {"data": [card(owned_by="somebody", max_model_len=9)]}
    engine = RemoteEngine(url)
    assert (await engine.start()).engine == ""
    await engine.post(CHAT, b'{"model": "m", "messages": [], "priority": -5}', priority=-2)
    await engine.post(CHAT, BODY, priority=1)
    await engine.close()
    assert [fields for fields, _ in server.seen] == [json.loads(BODY)] * 2
    assert "/version" not in server.asked


async def test_health_path_is_a_setting(server: Server, url: str) -> None:
    server.health_path, server.health = "/alive", 204
    settings = WorkerSettings(vllm_url=url, vllm_health_path="/alive")
    engine = engine_from(settings, [])
    await engine.start()
    server.health = 500
    with pytest.raises(EngineDied, match="/alive answered 500"):
        await engine.check(5)
    await engine.close()
    assert "/health" not in server.asked


async def test_server_that_asks_for_fewer_calls_lives(server: Server, engine: RemoteEngine) -> None:
    server.health = 429
    await engine.check(5)


async def test_empty_health_path_asks_for_the_models(server: Server, url: str) -> None:
    engine = RemoteEngine(url, health_path="")
    await engine.start()
    server.model_list = 500
    with pytest.raises(EngineDied, match="/v1/models answered 500"):
        await engine.check(5)
    await engine.close()
    assert "/health" not in server.asked


async def test_server_without_the_health_path_is_asked_for_its_models(
    server: Server, url: str
) -> None:
    server.health_path = "/elsewhere"
    engine = RemoteEngine(url)
    with capture_logs() as logs:
        await engine.start()
        await engine.start()
    assert [line["remedy"] for line in logs if line.get("fact") == "health"] == [
        "set GRISTMILL_VLLM_HEALTH_PATH to the path at which the server reports its health, or to nothing"
    ]
    await engine.check(5)
    server.model_list = 503
    with pytest.raises(EngineDied, match="/v1/models answered 503"):
        await engine.check(5)
    await engine.close()


async def test_server_with_neither_is_not_healthy(server: Server, url: str) -> None:
    server.health_path, server.model_list = "/elsewhere", 404
    with pytest.raises(EngineDied, match="/health answered 404"):
        await RemoteEngine(url, start_timeout_s=0).start()


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("where", ["/health", "/v1/models"])
async def test_refused_key_ends_the_start_and_is_not_told(
    server: Server, url: str, where: str, status: int
) -> None:
    if where == "/health":
        server.health = status
    else:
        server.model_list = status
    engine = RemoteEngine(url, "s3cr3t")
    with capture_logs() as logs, pytest.raises(SettingsError) as raised:
        await engine.start()
    assert f"{where} answered {status}; set VLLM_API_KEY" in str(raised.value)
    assert "s3cr3t" not in f"{raised.value} {logs} {engine.evidence()}"


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
async def test_url_may_have_a_path(server: Server, url: str, suffix: str) -> None:
    server.base_path = "/models/small"
    engine = RemoteEngine(f"{url}/models/small{suffix}", "secret")
    await engine.start()
    assert (await engine.post(CHAT, BODY)).status == 200
    await engine.check(5)
    await engine.close()
    assert {"/health", "/v1/models"} <= set(server.asked)


def test_two_logins_are_refused() -> None:
    with pytest.raises(SettingsError, match="remove one of them") as raised:
        RemoteEngine("http://s3cr3tuser:s3cr3tword@localhost:1", "s3cr3t")
    assert "s3cr3t" not in str(raised.value)


def test_health_path_without_a_slash_is_refused() -> None:
    with pytest.raises(SettingsError, match="GRISTMILL_VLLM_HEALTH_PATH: alive is no path"):
        WorkerSettings(vllm_health_path="alive")


async def check_started(url: str, missing: set[str], **facts: Any) -> None:
    """Start an engine twice; check what it knows, and that the log has each missing fact once."""
    engine = RemoteEngine(url, max_num_seqs=7)
    with capture_logs() as logs:
        await engine.start()
        info = await engine.start()
    await engine.close()
    assert {name: getattr(info, name) for name in facts} == facts
    told = [line["fact"] for line in logs if line["event"] == "engine.fact_missing"]
    assert sorted(told) == sorted(missing)


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


@pytest.mark.parametrize("status", [600, 999])
async def test_status_that_http_does_not_have_is_a_broken_answer(
    server: Server, engine: RemoteEngine, status: int
) -> None:
    server.status = status
    response = await engine.post(CHAT, BODY)
    assert response.status == 502
    assert f"answered with status {status}" in json.loads(response.body)["error"]["message"]


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
