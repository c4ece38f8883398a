"""Calls that create something and come twice: one file, one batch, one request; and what may not be repeated."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import orjson
import pytest
from batches import chat, jsonl, stewarded
from gateways import RunningGateway, problem
from redis.exceptions import ConnectionError as RedisConnectionError
from workers import local_worker, settings_for

from gristmill.producer.batches.batch_records import BatchRecords
from gristmill.producer.batches.batch_spec import BatchSpec
from gristmill.producer.gateway import failover_retry
from gristmill.producer.gateway.tenant_limits import TenantLimiter
from gristmill.producer.tenants import Tenant
from gristmill.shared.queue import Queue
from gristmill.shared.request import ENDPOINTS
from gristmill.worker.engine import EngineInfo, Response, StubEngine
from gristmill.worker.engine.stub import ENDPOINTS as STUB_ENDPOINTS

CHAT = "/v1/chat/completions"
LINES = jsonl([chat("a"), chat("bad", stream=True)])
KEY = {"Idempotency-Key": "nightly 7"}


async def uploaded(api: httpx.AsyncClient, data: bytes = LINES, **headers: str) -> httpx.Response:
    return await api.post("/v1/files", files={"file": ("in.jsonl", data)}, data={"purpose": "batch"}, headers=headers)  # fmt: skip


@pytest.fixture
async def new_batch(api: httpx.AsyncClient) -> dict[str, Any]:
    """The body of a new batch."""
    file = (await uploaded(api)).json()
    return {"input_file_id": file["id"], "endpoint": CHAT, "mode": "lenient"}


async def test_a_key_creates_one_file_even_at_the_quota(
    gateway: RunningGateway, tmp_path: Path
) -> None:
    key = await gateway.add_tenant("small", max_storage_bytes=2 * 2**20)
    async with gateway.caller(key) as api:
        data = b"x" * 2**20 * 2
        first = await uploaded(api, data, **KEY)
        again = await uploaded(api, data, **KEY)
        assert (again.status_code, again.json()) == (200, first.json())
        other = await uploaded(api, b"y", **KEY)
        assert (other.status_code, problem(other)["code"]) == (409, "id_conflict")
        assert first.json()["id"] in problem(other)["message"]
        (stored,) = [path for path in tmp_path.rglob("*") if path.is_file()]  # noqa: ASYNC240
        assert stored.stat().st_size == len(data)
        await api.delete(f"/v1/files/{first.json()['id']}")
        assert (await uploaded(api, data, **KEY)).json()["id"] != first.json()["id"]


async def test_a_key_creates_one_batch(
    api: httpx.AsyncClient, other: httpx.AsyncClient, new_batch: dict[str, Any], queue: Queue
) -> None:
    calls = [api.post("/v1/batches", json=new_batch, headers=KEY) for _ in range(5)]
    answers = await asyncio.gather(*calls)
    assert {answer.status_code for answer in answers} == {200}
    (batch_id,) = {answer.json()["id"] for answer in answers}
    assert len((await api.get("/v1/batches")).json()["data"]) == 1
    changed = await api.post("/v1/batches", json=new_batch | {"mode": "strict"}, headers=KEY)
    assert (changed.status_code, problem(changed)["code"]) == (409, "id_conflict")
    assert batch_id in problem(changed)["message"]
    as_retry = await api.post(f"/v1/batches/{batch_id}/retry", headers=KEY)
    assert as_retry.status_code == 409
    assert (await other.post("/v1/batches", json=new_batch, headers=KEY)).status_code == 404
    assert await queue.redis.ttl(queue.keys.idempotency("acme", KEY["Idempotency-Key"])) > 0
    unkeyed = (await api.post("/v1/batches", json=new_batch)).json()
    assert unkeyed["id"] != batch_id


async def test_a_key_whose_call_created_nothing_may_be_used_again(
    gateway: RunningGateway,
) -> None:
    key = await gateway.add_tenant("small", max_batches=1)
    async with gateway.caller(key) as api:
        body = {"input_file_id": (await uploaded(api)).json()["id"], "endpoint": CHAT}
        for wrong, status in (({"endpoint": "/v1/no"}, 400), ({"input_file_id": "file-no"}, 404)):
            refused = await api.post("/v1/batches", json=body | wrong, headers=KEY)
            assert refused.status_code == status
        first = await api.post("/v1/batches", json=body)
        assert (await api.post("/v1/batches", json=body, headers=KEY)).status_code == 429
        await gateway.gateway.batches.store.records.forget("small", first.json()["id"])
        made = await api.post("/v1/batches", json=body | {"order": "input"}, headers=KEY)
        assert made.status_code == 200


@pytest.mark.usefixtures("worker")
async def test_a_key_creates_one_retry(
    gateway: RunningGateway, api: httpx.AsyncClient, new_batch: dict[str, Any]
) -> None:
    made = (await api.post("/v1/batches", json=new_batch)).json()
    async with stewarded(gateway.gateway.batches):
        while (await api.get(f"/v1/batches/{made['id']}")).json()["status"] != "completed":
            await asyncio.sleep(0.05)
    calls = [api.post(f"/v1/batches/{made['id']}/retry?all=true", headers=KEY) for _ in range(3)]
    answers = await asyncio.gather(*calls)
    assert {answer.status_code for answer in answers} == {200}, answers[0].text
    (retry_id,) = {answer.json()["id"] for answer in answers}
    assert len((await api.get("/v1/batches")).json()["data"]) == 2
    assert retry_id != made["id"]
    files = (await api.get("/v1/files", params={"purpose": "batch"})).json()["data"]
    assert len(files) == 2  # the input, and that of one retry


async def test_a_lost_reply_creates_one_batch(
    api: httpx.AsyncClient, new_batch: dict[str, Any]
) -> None:
    """The gateway repeats the call to Redis by itself."""
    create, calls = BatchRecords.create, iter([True])

    async def losing(self: BatchRecords, *args: Any) -> None:
        await create(self, *args)
        if next(calls, False):
            raise RedisConnectionError

    with patch.object(BatchRecords, "create", losing):
        assert (await api.post("/v1/batches", json=new_batch)).status_code == 200
    assert len((await api.get("/v1/batches")).json()["data"]) == 1


async def test_a_call_that_may_have_created_something_is_not_to_be_repeated(
    api: httpx.AsyncClient, new_batch: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failover_retry, "REDIS_RETRY_S", 0.0)

    async def lost(*_: Any, **__: Any) -> None:
        raise RedisConnectionError("gone")

    plain = {"prompt": "x"}
    with patch.object(BatchRecords, "create", lost), patch.object(Queue, "submit", lost):
        monkeypatch.setattr("gristmill.producer.gateway.queuing.REDIS_RETRY_S", 0.1)
        for path, body, own_id in (
            ("/v1/batches", new_batch, None),
            ("/v1/requests", plain, plain | {"id": "mine"}),
            ("/v1/completions", plain, None),
        ):
            unsure = await api.post(path, json=body)
            assert (unsure.status_code, unsure.headers["x-should-retry"]) == (503, "false")
            assert "send an Idempotency-Key" in problem(unsure)["message"]
            assert "nothing is lost" not in problem(unsure)["message"]
            safe = [await api.post(path, json=body, headers={"Idempotency-Key": "k"})]
            safe += [await api.post(path, json=own_id)] if own_id else []
            for answer in safe:
                assert answer.status_code == 503
                assert answer.headers["Retry-After"] == "5"
                assert "x-should-retry" not in answer.headers


async def test_the_same_batch_again_is_not_listed_as_open_after_its_end(
    gateway: RunningGateway, queue: Queue
) -> None:
    records = gateway.gateway.batches.store.records
    record = BatchSpec(input_file_id="file-1", endpoint=CHAT).record("batch_1", "acme", 0)
    await records.create(record, 1)
    await records.create(record, 1)
    await queue.redis.srem(queue.keys.batches_open("acme"), record.id)
    await records.create(record, 1)
    assert await records.num_open("acme") == 0


async def test_a_client_that_has_left_creates_no_batch(
    gateway: RunningGateway, key: str, api: httpx.AsyncClient, new_batch: dict[str, Any]
) -> None:
    """Regression: a client that timed out and called again had two batches, all work twice."""
    count_call, has_left = TenantLimiter.count_call, asyncio.Event()

    async def late(self: TenantLimiter, tenant: Tenant) -> None:
        await has_left.wait()
        await count_call(self, tenant)

    body = orjson.dumps(new_batch)
    head = f"POST /v1/batches HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: {len(body)}\r\n\r\n"
    tasks = gateway.server.server_state.tasks
    with patch.object(TenantLimiter, "count_call", late):
        host, port = gateway.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(head.encode() + body)
        while not tasks:
            await asyncio.sleep(0.01)
        connections = len(gateway.server.server_state.connections)
        writer.close()
        while len(gateway.server.server_state.connections) == connections:
            await asyncio.sleep(0.01)
        has_left.set()
        while tasks:
            await asyncio.sleep(0.01)
    assert (await api.get("/v1/batches")).json()["data"] == []


CREATING: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "/v1/requests": ({"prompt": "a"}, {"prompt": "b"}),
    "/v1/chat/completions": (
        {"model": "stub", "messages": [{"role": "user", "content": "a"}]},
        {"model": "stub", "messages": [{"role": "user", "content": "b"}]},
    ),
    "/v1/completions": ({"model": "stub", "prompt": "a"}, {"model": "stub", "prompt": "b"}),
    "/v1/embeddings": ({"model": "stub", "input": "a"}, {"model": "stub", "input": "b"}),
    "/v1/responses": ({"model": "stub", "input": "a"}, {"model": "stub", "input": "b"}),
    "/v1/rerank": (
        {"model": "stub", "query": "a", "documents": ["x"]},
        {"model": "stub", "query": "b", "documents": ["x"]},
    ),
    "/v1/score": (
        {"model": "stub", "text_1": "a", "text_2": "x"},
        {"model": "stub", "text_1": "b", "text_2": "x"},
    ),
}
"""Route that queues a request -> a body, and another one."""

CREATING_OTHERWISE = {"/v1/files", "/v1/batches", "/v1/batches/{batch_id}/retry"}
"""Routes that create something else; each has its own step in the test below."""

CREATING_NOTHING = {"/v1/batches/{batch_id}/cancel"}
"""Routes whose repeat changes nothing."""


class AnswersAll(StubEngine):
    """A stub that serves every endpoint; those that it does not know get an empty answer."""

    async def start(self) -> EngineInfo:
        return replace(await super().start(), endpoints=ENDPOINTS)

    async def post(self, endpoint: str, body: bytes, **options: Any) -> Response:
        if endpoint in STUB_ENDPOINTS:
            return await super().post(endpoint, body, **options)
        return Response(200, b"{}")


@pytest.fixture
async def worker_for_all(redis_url: str, queue: Queue) -> AsyncIterator[None]:
    async with local_worker(settings_for(redis_url, queue), AnswersAll()):
        yield


@pytest.mark.parametrize("key", ["call", "call of day 7", "k" * 128])
@pytest.mark.usefixtures("worker_for_all")
async def test_every_creating_route_takes_a_key(
    gateway: RunningGateway, api: httpx.AsyncClient, key: str
) -> None:
    """Same key and body: the same thing. Same key and another body: a 409. A route that is not listed fails."""
    paths = (await api.get("/openapi.json")).json()["paths"]
    posts = {path for path, methods in paths.items() if "post" in methods}
    creating = set(CREATING) | CREATING_OTHERWISE
    assert posts == creating | CREATING_NOTHING
    for path in sorted(creating):
        names = {each["name"] for each in paths[path]["post"].get("parameters", ())}
        assert "idempotency-key" in {name.lower() for name in names}, path
    keys = ({"Idempotency-Key": key[:-2] + f"{number:02}"} for number in count())
    for path, (body, other) in CREATING.items():
        headers = next(keys) | {"Prefer": "wait=9"}
        answers = [await api.post(path, json=each, headers=headers) for each in (body, body, other)]
        check_one_made(path, answers)
    headers = next(keys)
    files = [await uploaded(api, data, **headers) for data in (LINES, LINES, b"{}")]
    check_one_made("/v1/files", files)
    new = {"input_file_id": files[0].json()["id"], "endpoint": CHAT, "mode": "lenient"}
    headers, bodies = next(keys), (new, new, new | {"order": "input"})
    made = [await api.post("/v1/batches", json=body, headers=headers) for body in bodies]
    check_one_made("/v1/batches", made)
    batch_id, headers = made[0].json()["id"], next(keys)
    async with stewarded(gateway.gateway.batches):
        while (await api.get(f"/v1/batches/{batch_id}")).json()["status"] != "completed":
            await asyncio.sleep(0.05)
    retry = f"/v1/batches/{batch_id}/retry?all="
    retried = [await api.post(retry + is_all, headers=headers) for is_all in ("true", "true", "false")]  # fmt: skip
    check_one_made(retry, retried)


def check_one_made(path: str, answers: list[httpx.Response]) -> None:
    """Check the answers to a call, its repeat, and a call with another body."""
    first, again, changed = answers
    assert first.status_code in {200, 202}, (path, first.text)
    assert made_id(again) == made_id(first), path
    assert (changed.status_code, problem(changed)["code"]) == (409, "id_conflict"), path


def made_id(answer: httpx.Response) -> str:
    """Return the id of what a call made; a live request has it in a header."""
    return answer.headers.get("x-gristmill-request-id") or str(answer.json()["id"])
