"""Access to the gateway: keys, errors of wrong calls, the log, start and stop of the process."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import orjson
import pytest
from gateways import RunningGateway, gateway_settings, problem, running_gateway
from servers import kill, port_of, with_least_user

from gristmill.local.processes import die_with_parent, free_port
from gristmill.local.redis_server import running_server
from gristmill.producer.gateway import authentication, failover_retry, queuing
from gristmill.producer.tenants import Tenant, Tenants
from gristmill.shared.connection import connect
from gristmill.shared.queue import Queue

COMMAND = "import sys; from gristmill.producer.gateway.commands import gateway; sys.exit(gateway(standalone_mode=False))"


async def test_without_a_tenant_everybody_on_this_machine_is_let_in(
    gateway: RunningGateway,
) -> None:
    for key in ("", "anything"):
        async with gateway.caller(key) as api:
            assert (await api.get("/v1/files")).status_code == 200
            answer = await api.post("/v1/requests", json={"prompt": "x"})
            assert answer.json()["id"].startswith("default.")


async def test_a_page_of_another_site_cannot_use_an_open_gateway(gateway: RunningGateway) -> None:
    body = b'{"prompt": "x"}'
    for origin, status in (("https://evil.example", 403), ("null", 403), (gateway.url, 202)):
        async with gateway.caller(Origin=origin) as api:
            answer = await api.post("/v1/requests", content=body)
            assert answer.status_code == status
    async with gateway.caller(
        await gateway.add_tenant("acme"), Origin="https://app.example"
    ) as api:
        assert (await api.post("/v1/requests", content=body)).status_code == 202


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example", 403), ("evil.example:8000", 403), ("127.0.0.1.evil.example", 403), ("localhost.evil", 403),
        ("10.0.0.1", 403), ("[::2]:80", 403), ("[", 403), ("localhost", 200), ("LocalHost:9", 200), ("127.1.2.3:80", 200),
        ("[::1]:8000", 200),
    ],
)  # fmt: skip
async def test_a_name_that_leads_to_loopback_is_no_loopback_name(
    gateway: RunningGateway, host: str, status: int
) -> None:
    async with gateway.caller(Host=host, Origin=f"http://{host}") as api:
        answer = await api.get("/v1/files")
    assert answer.status_code == status
    if status == 403:
        assert problem(answer)["code"] == "cross_site"
        assert "GRISTMILL_GATEWAY_ALLOW_ANONYMOUS" in problem(answer)["message"]


async def test_a_host_is_any_with_a_key_or_where_calls_without_one_are_allowed(
    gateway: RunningGateway, redis_url: str, queue: Queue, tmp_path: Path
) -> None:
    settings = gateway_settings(redis_url, queue, tmp_path, gateway_allow_anonymous="true")
    async with running_gateway(settings) as allowing, allowing.caller(Host="app.example") as api:
        assert (await api.get("/v1/files")).status_code == 200
    async with gateway.caller(await gateway.add_tenant("acme"), Host="app.example") as api:
        assert (await api.get("/v1/files")).status_code == 200


async def test_without_a_tenant_nobody_is_let_in_from_elsewhere(
    redis_url: str, queue: Queue, tmp_path: Path
) -> None:
    for allowed, status in (("false", 401), ("true", 200), ("loopback", 200)):
        settings = gateway_settings(
            redis_url, queue, tmp_path, gateway_host="0.0.0.0", gateway_allow_anonymous=allowed  # noqa: S104
        )  # fmt: skip
        async with running_gateway(settings) as gateway, gateway.caller("anything") as api:
            assert (await api.get("/v1/files")).status_code == status
            other = await api.get("/v1/files", headers={"Host": "app.example"})
            assert other.status_code == (403 if allowed == "loopback" else status)


async def test_a_key_is_needed_once_there_is_a_tenant(gateway: RunningGateway, key: str) -> None:
    for headers in ({}, {"Authorization": f"Bearer {key}x"}, {"Authorization": f"Basic {key}"}):
        async with gateway.caller(**headers) as api:
            for method, path in (
                ("GET", "files"),
                ("POST", "requests"),
                ("GET", "models"),
                ("POST", "batches"),
            ):
                answer = await api.request(
                    method, f"/v1/{path}", json={"input_file_id": "x", "endpoint": "x"}
                )
                assert answer.status_code == 401, path
                assert answer.headers["WWW-Authenticate"] == "Bearer"
                error = problem(answer)
                assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
                assert key not in answer.text


async def test_a_revoked_key_ends_within_seconds(
    gateway: RunningGateway, key: str, api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "CACHE_TTL_S", 0.0)
    assert (await api.get("/v1/files")).status_code == 200
    tenants = Tenants(gateway.gateway.queue.redis)
    new = await tenants.add_key("acme")
    assert await tenants.revoke_keys("acme") == 2
    for old in (key, new):
        async with gateway.caller(old) as client:
            assert (await client.get("/v1/files")).status_code == 401


async def test_every_error_has_openais_form(api: httpx.AsyncClient) -> None:
    cases = [
        ("GET", "/nothing", 404), ("PUT", "/v1/files", 405), ("GET", "/v1/files?limit=0", 400),
        ("GET", "/v1/files?order=up", 400), ("GET", "/v1/batches?limit=101", 400), ("POST", "/v1/batches", 400),
        ("GET", "/v1/files/x", 404), ("GET", "/v1/batches/x/y", 404), ("GET", "/v1/models/none", 404),
    ]  # fmt: skip
    for method, path, status in cases:
        answer = await api.request(method, path)
        assert answer.status_code == status, path
        problem(answer)
        assert answer.headers["X-Request-Id"].startswith("req-")
    assert problem(await api.get("/v1/files?limit=0"))["param"] == "limit"


async def test_bodies_that_nobody_bounds_are_bounded(api: httpx.AsyncClient) -> None:
    long = await api.post("/v1/batches", content=b" " * (2**20 + 1))
    assert (long.status_code, problem(long)["code"]) == (413, "too_large")

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(17):
            yield b" " * 2**16

    unknown = await api.post("/v1/batches", content=pieces())
    assert (unknown.status_code, problem(unknown)["code"]) == (413, "too_large")


async def test_models_are_those_of_living_workers(api: httpx.AsyncClient, queue: Queue) -> None:
    assert (await api.get("/v1/models")).json() == {"object": "list", "data": []}
    await queue.register("w1", {"models": "org/base,adapter", "max_model_len": 4096})
    await queue.register("w2", {"models": "org/base", "max_model_len": 8192})
    await queue.register("w3", {"models": "gone"})
    await queue.redis.zadd(queue.keys.workers, {"w3": 1}, xx=True)
    models = (await api.get("/v1/models")).json()["data"]
    assert [(m["id"], m["object"], m["max_model_len"]) for m in models] == [
        ("adapter", "model", 4096), ("org/base", "model", 8192),
    ]  # fmt: skip
    assert (await api.get("/v1/models/org/base")).json()["id"] == "org/base"
    assert (await api.get("/v1/models/gone")).status_code == 404


async def test_probes_and_metrics_need_no_key(gateway: RunningGateway, key: str) -> None:
    async with gateway.caller() as client:
        assert (await client.get("/healthz")).text == "ok\n"
        assert (await client.get("/readyz")).text == "ok\n"
        await client.get("/v1/files")
        text = (await client.get("/metrics")).text
    assert 'gristmill_gateway_calls_total{method="GET",route="/v1/files",status="401"}' in text
    assert key not in text


async def test_while_redis_is_away_calls_are_told_503(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failover_retry, "REDIS_RETRY_S", 0.3)
    monkeypatch.setattr(queuing, "REDIS_RETRY_S", 0.3)
    with running_server() as url:
        redis = connect(url)
        settings = gateway_settings(url, Queue(redis, "outage"), tmp_path)
        async with running_gateway(settings) as gateway, gateway.caller() as api:
            assert (await api.get("/readyz")).status_code == 200
            kill(port_of(url))
            for method, path in (
                ("GET", "/v1/files"), ("GET", "/v1/requests/default.x"), ("POST", "/v1/requests"),
                ("DELETE", "/v1/requests/default.x"), ("GET", "/v1/models"), ("POST", "/v1/batches"),
            ):  # fmt: skip
                body = {"prompt": "x", "input_file_id": "x", "endpoint": "/v1/completions"}
                if path == "/v1/batches":
                    body.pop("prompt")
                answer = await api.request(method, path, json=body)
                assert answer.status_code == 503, path
                assert (problem(answer)["code"], answer.headers["Retry-After"]) == (
                    "redis_away",
                    "5",
                )
                assert "Redis does not answer; nothing is lost" in problem(answer)["message"]
                assert str(port_of(url)) not in answer.text
            assert (await api.get("/readyz")).status_code == 503
            assert (await api.get("/healthz")).status_code == 200
        await redis.aclose()


async def test_a_full_redis_is_called_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failover_retry, "REDIS_RETRY_S", 0.3)
    monkeypatch.setattr(queuing, "REDIS_RETRY_S", 0.3)
    with running_server() as url:
        redis = connect(url)
        settings = gateway_settings(url, Queue(redis, "full"), tmp_path)
        async with running_gateway(settings) as gateway, gateway.caller() as api:
            await redis.config_set("maxmemory", 1)
            answer = await api.post("/v1/requests", json={"prompt": "x"})
            assert (answer.status_code, problem(answer)["code"]) == (503, "redis_away")
            assert problem(answer)["message"] == (
                "the queue's Redis is full; nothing is lost, call again later"
            )
            await redis.config_set("maxmemory", 0)
            assert (await api.post("/v1/requests", json={"prompt": "x"})).status_code == 202
        await redis.aclose()


# -- the process -------------------------------------------------------------------------------------


def log_of(path: Path) -> list[dict[str, object]]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


async def test_the_process_answers_logs_and_drains(
    redis_url: str, queue: Queue, tmp_path: Path
) -> None:
    port, log = free_port(), tmp_path / "log"
    environment = os.environ | {
        "REDIS_URL": redis_url, "GRISTMILL_QUEUE": queue.keys.queue, "GRISTMILL_GATEWAY_PORT": str(port),
        "GRISTMILL_STORAGE_URL": str(tmp_path / "files"),
    }  # fmt: skip
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", COMMAND], stdout=output, stderr=subprocess.STDOUT, env=environment,
            preexec_fn=die_with_parent,  # noqa: PLW1509  # one C call, no locks
        )  # fmt: skip
    key = await Tenants(queue.redis).create(Tenant(name="acme"))
    headers = {"Authorization": f"Bearer {key}", "X-Request-Id": "trace-9"}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers) as api:
        while not await _answers(api):
            assert process.poll() is None, log.read_text()
            await asyncio.sleep(0.05)
        secret = {"prompt": "a secret prompt"}
        answer = await api.post("/v1/requests?secret=query", json=secret)
        assert answer.status_code == 202
        waiting = asyncio.create_task(api.get(answer.headers["Location"], params={"wait": 30}))
        while b"open_calls 2.0" not in (await api.get("/metrics")).content:
            await asyncio.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        assert (await waiting).json()["status"] == "queued"
    assert await asyncio.to_thread(process.wait, 10) == 0, log.read_text()
    text = log.read_text()
    lines = [row for row in log_of(log) if row["event"] == "call.answered"]
    first, second = lines
    assert (first["method"], first["path"], first["status"]) == ("POST", "/v1/requests", 202)
    assert (first["tenant"], first["request_id"], first["id"]) == (
        "acme",
        "trace-9",
        answer.json()["id"],
    )
    assert (second["status"], second["route"]) == (200, "/v1/requests/{request_id:path}")
    assert log_of(log)[-1]["event"] == "gateway.stopped"
    assert not [word for word in (key, "a secret prompt", "secret=query") if word in text]


async def _answers(api: httpx.AsyncClient) -> bool:
    try:
        return (await api.get("/readyz")).status_code == 200
    except httpx.TransportError:
        return False


async def test_a_user_with_least_rights_serves_every_route(
    redis_url: str, queue: Queue, tmp_path: Path
) -> None:
    url = with_least_user(redis_url)
    async with running_gateway(gateway_settings(url, queue, tmp_path)) as gateway:
        tenants = Tenants(gateway.gateway.queue.redis)
        key = await gateway.add_tenant("acme")
        assert [each.name for each in await tenants.list()] == ["acme"]
        async with gateway.caller(key) as api:
            file = await api.post("/v1/files", files={"file": b"{}"}, data={"purpose": "batch"})
            body = {"input_file_id": file.json()["id"], "endpoint": "/v1/completions"}
            batch = (await api.post("/v1/batches", json=body)).json()
            request = (await api.post("/v1/requests", json={"prompt": "x"})).json()
            for method, path in (
                ("GET", "files"), ("GET", "batches"), ("GET", f"batches/{batch['id']}/results"), ("GET", "models"),
                ("POST", f"batches/{batch['id']}/cancel"), ("DELETE", f"requests/{request['id']}"),
            ):  # fmt: skip
                answer = await api.request(method, f"/v1/{path}")
                assert answer.status_code == 200, (path, answer.text)
            assert (await api.get("/readyz")).status_code == 200
        await tenants.delete("acme")
