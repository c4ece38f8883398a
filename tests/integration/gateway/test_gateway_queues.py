"""Several queues behind one gateway: the map from models to queues, ids that name their queue, repeated calls."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from batches import chat, jsonl, stewarded
from command_line import SettlingWorker
from gateways import RunningGateway, gateway_settings, problem, running_gateway
from prometheus_client import REGISTRY
from queues import a_request, claim, open_worker, outcome

from gristmill.producer.batches.batch_service import Batches
from gristmill.producer.batches.child_batches import child_id
from gristmill.producer.gateway.settings import GatewaySettings
from gristmill.producer.noted_queues import note_queue
from gristmill.producer.tenant_purge import purge_tenant
from gristmill.producer.tenants import Tenants
from gristmill.shared.errors import SettingsError
from gristmill.shared.keys import DirectoryKeys
from gristmill.shared.operations import Settlement, Use
from gristmill.shared.queue import Queue
from gristmill.shared.settings import read_settings


def serving(models: str) -> Mapping[str, str | int]:
    """Return what a worker that serves models registers."""
    paths = "/v1/completions,/v1/chat/completions"
    return {"models": models, "endpoints": paths, "max_model_len": 64}


@dataclass
class Place:
    """A gateway before two queues, and a caller; a worker serves `model-a` in the first queue."""

    gateway: RunningGateway
    api: httpx.AsyncClient
    first: Queue
    second: Queue

    async def serve(self, queue: Queue, models: str) -> None:
        """Register a worker that serves models in a queue."""
        await SettlingWorker(queue, facts=serving(models)).register()

    async def send(self, model: str = "", **fields: Any) -> httpx.Response:
        """Queue a request of a model."""
        body = {"prompt": "x", **({"model": model} if model else {})}
        headers = fields.pop("headers", None)
        return await self.api.post("/v1/requests", json={"body": body} | fields, headers=headers)


@pytest.fixture
async def place(redis_url: str, queue: Queue, tmp_path: Path) -> AsyncIterator[Place]:
    second = Queue(queue.redis, f"{queue.keys.queue}-b", queue.limits)
    settings = gateway_settings(
        redis_url,
        queue,
        tmp_path,
        gateway_queues=second.keys.queue,
        gateway_models=f"org/asleep={second.keys.queue}",
    )
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(running_gateway(settings))
        api = await stack.enter_async_context(gateway.caller(await gateway.add_tenant("acme")))
        made = Place(gateway, api, queue, second)
        await made.serve(queue, "model-a")
        yield made


async def depths(place: Place) -> tuple[int, int]:
    return tuple(
        [(await each.stats()).counters.get("queued", 0) for each in (place.first, place.second)]
    )  # type: ignore[return-value]


async def test_a_request_goes_to_the_queue_of_its_model(place: Place) -> None:
    await place.serve(place.second, "model-b,adapter")
    for model, expected in (
        ("model-a", (1, 0)),
        ("model-b", (1, 1)),
        ("adapter", (1, 2)),
        ("", (2, 2)),
    ):
        answer = await place.send(model)
        assert answer.status_code == 202, answer.text
        assert await depths(place) == expected
        request_id = answer.json()["id"]
        is_second = model in ("model-b", "adapter")
        assert request_id.endswith(f"@{place.second.keys.queue}") == is_second
        assert (await place.api.get(f"/v1/requests/{request_id}")).json()["status"] == "queued"
        queue = place.second if is_second else place.first
        assert (await queue.status([request_id]))[0][0] == "queued"
    cancelled = await place.api.delete(f"/v1/requests/{request_id}")
    assert cancelled.json()["status"] == "cancelled"


async def test_results_of_both_queues_are_found_and_live_requests_too(place: Place) -> None:
    async with SettlingWorker(place.second, facts=serving("model-b")).running():
        done = await place.api.post(
            "/v1/requests", json={"model": "model-b", "prompt": "x"}, headers={"Prefer": "wait=10"}
        )
        assert (done.status_code, done.json()["status"]) == (200, "succeeded")
        found = await place.api.get(f"/v1/requests/{done.json()['id']}")
        assert found.json()["status"] == "succeeded"
        live = await place.api.post("/v1/completions", json={"model": "model-b", "prompt": "x"})
        assert live.status_code == 200, live.text
        assert live.headers["X-Gristmill-Request-Id"].endswith(f"@{place.second.keys.queue}")


async def test_a_declared_model_is_listed_accepted_and_waits(place: Place) -> None:
    await place.serve(place.second, "model-b")  # other models of the queue have workers
    listed = {each["id"]: each for each in (await place.api.get("/v1/models")).json()["data"]}
    assert set(listed) == {"model-a", "model-b", "org/asleep"}
    assert listed["model-b"]["max_model_len"] == 64
    assert {each["created"] for each in listed.values()} == {0}
    assert (await place.api.get("/v1/models/org/asleep")).status_code == 200
    assert (await place.send("org/asleep")).status_code == 202
    assert await depths(place) == (0, 1)


async def test_a_live_call_of_a_declared_model_waits_and_ends_as_a_504(
    place: Place, redis_url: str, tmp_path: Path
) -> None:
    settings = gateway_settings(
        redis_url, place.first, tmp_path, gateway_live_timeout_s=0.2,
        gateway_queues=place.second.keys.queue, gateway_models=f"org/asleep={place.second.keys.queue}",
    )  # fmt: skip
    key = await place.gateway.add_tenant("waits")
    async with running_gateway(settings) as gateway, gateway.caller(key) as api:
        late = await api.post("/v1/completions", json={"model": "org/asleep", "prompt": "x"})
    assert (late.status_code, problem(late)["code"]) == (504, "timeout")
    assert f"no worker of queue {place.second.keys.queue} lives" in problem(late)["message"]
    assert await depths(place) == (0, 1)


async def test_a_model_that_nobody_serves_is_refused(place: Place) -> None:
    refused = await place.send("model-x")
    assert (refused.status_code, problem(refused)["code"]) == (404, "model_not_found")
    assert "GET /v1/models lists" in problem(refused)["message"]
    assert await depths(place) == (0, 0)


async def test_a_worker_that_has_just_come_is_found_at_once(place: Place) -> None:
    assert (await place.send("model-b")).status_code == 404
    await place.serve(place.second, "model-b")
    assert (await place.send("model-b")).status_code == 202
    assert await depths(place) == (0, 1)


@pytest.mark.parametrize("how", ["key", "id"])
async def test_a_repeat_finds_its_request_after_the_model_has_moved(place: Place, how: str) -> None:
    async def send() -> httpx.Response:
        if how == "key":
            return await place.send("model-b", headers={"Idempotency-Key": "once"})
        return await place.send("model-b", id="once")

    await place.serve(place.second, "model-b")
    made = await send()
    await place.second.deregister("worker")
    await place.first.deregister("worker")
    await place.serve(place.first, "model-a,model-b")
    for each in place.gateway.gateway.models.queues:  # as after 5 s
        each.fleet._fleet = None
    again = await send()
    assert again.json()["id"] == made.json()["id"]
    assert await depths(place) == (0, 1)
    assert (await place.send("model-b")).status_code == 202
    assert await depths(place) == (1, 1)


async def test_a_repeat_finds_what_a_gateway_of_one_queue_has_queued(
    place: Place, redis_url: str, tmp_path: Path
) -> None:
    await place.serve(place.second, "model-b")
    await place.first.deregister("worker")
    headers = {"Idempotency-Key": "once"}
    body = {"model": "model-b", "prompt": "x"}
    async with (
        running_gateway(gateway_settings(redis_url, place.first, tmp_path)) as alone,
        alone.caller(str(place.api.headers["Authorization"]).split()[1]) as api,
    ):
        made = await api.post("/v1/requests", json=body, headers=headers)
        assert made.status_code == 202, made.text
    again = await place.api.post("/v1/requests", json=body, headers=headers)
    assert again.json()["id"] == made.json()["id"] == "acme.once"
    assert await depths(place) == (1, 0)


async def test_a_key_that_looks_like_an_id_of_another_queue_is_found(place: Place) -> None:
    key = f"once@{place.second.keys.queue}"
    made = await place.send("model-a", headers={"Idempotency-Key": key})
    assert made.json()["id"] == f"acme.{key}@{place.first.keys.queue}"
    found = await place.api.get(f"/v1/requests/{made.json()['id']}")
    assert found.json()["status"] == "queued"
    assert await depths(place) == (1, 0)


async def test_a_key_whose_request_was_refused_may_go_to_another_queue(place: Place) -> None:
    headers = {"Idempotency-Key": "later"}
    assert (await place.send("model-b", headers=headers)).status_code == 404
    await place.serve(place.second, "model-b")
    assert (await place.send("model-b", headers=headers)).status_code == 202
    assert await depths(place) == (0, 1)


async def test_depth_is_limited_in_each_queue_and_usage_is_the_sum(place: Place) -> None:
    async with place.gateway.caller(await place.gateway.add_tenant("small", max_depth=1)) as api:
        await place.serve(place.second, "model-b")
        codes = [
            (await api.post("/v1/requests", json={"model": model, "prompt": "x"})).status_code
            for model in ("model-a", "model-b", "model-a", "model-b")
        ]
        assert codes == [202, 202, 429, 429]
        assert (await api.get("/v1/tenant")).json()["usage"]["depth"] == 2


async def test_live_requests_are_limited_in_all_queues_together(
    place: Place, redis_url: str, tmp_path: Path
) -> None:
    """Also those of a gateway whose first queue, which its ids do not name, is another."""
    await place.serve(place.second, "model-b")
    key = await place.gateway.add_tenant("small", max_live=2)
    other = running_gateway(gateway_settings(redis_url, place.second, tmp_path))
    async with other as gateway, gateway.caller(key) as there, place.gateway.caller(key) as here:

        async def send(api: httpx.AsyncClient, model: str) -> httpx.Response:
            return await api.post("/v1/completions", json={"model": model, "prompt": "x"})

        calls = [
            asyncio.create_task(send(*each)) for each in ((here, "model-a"), (there, "model-b"))
        ]
        while await depths(place) != (1, 1):
            await asyncio.sleep(0.01)
        for api, model in ((here, "model-a"), (here, "model-b"), (there, "model-b")):
            full = await send(api, model)
            assert (full.status_code, problem(full)["code"]) == (429, "limit_reached")
        assert (await there.get("/v1/tenant")).json()["usage"]["live"] == 2
        (second,) = [
            key async for key in place.second.redis.scan_iter(place.second.keys.request("*"))
        ]
        await place.second.cancel([place.second.keys.parse(second)[1]])
        assert (await calls[1]).status_code == 409
        calls.append(asyncio.create_task(send(here, "model-b")))
        while await depths(place) != (1, 1):
            await asyncio.sleep(0.01)
        for call in calls:
            call.cancel()


async def use(queue: Queue, tenant: str) -> None:
    """Let a tenant use 12 tokens of a queue."""
    await queue.submit([a_request(tenant=tenant)])
    worker = await open_worker(queue)
    (item,) = await claim(queue, worker)
    used = Use(tenant, "m", 0, 1000)
    await queue.ack(
        worker, [Settlement(item.id, item.delivery, "succeeded", outcome(item), 10, 2, usage=used)]
    )


async def test_tokens_are_limited_in_all_noted_queues_together(place: Place) -> None:
    alone = Queue(place.first.redis, f"{place.first.keys.queue}-c")  # of another gateway
    await note_queue(alone.redis, alone.keys.queue)
    key = await place.gateway.add_tenant("thrifty", tokens_per_day=36)
    for queue in (place.first, place.second, alone):
        await use(queue, "thrifty")
    await place.serve(place.second, "model-b")
    async with place.gateway.caller(key) as api:
        for model in ("model-a", "model-b"):
            body = {"model": model, "prompt": "x"}
            refused = await api.post("/v1/requests", json=body)
            assert (refused.status_code, problem(refused)["code"]) == (429, "insufficient_quota")
            assert "used 36 of 36 tokens (tokens_per_day)" in problem(refused)["message"]
        assert (await api.get("/v1/tenant")).json()["usage"]["tokens_today"] == 36


async def test_usage_is_the_sum_of_all_queues(place: Place) -> None:
    for queue in (place.first, place.second):
        await use(queue, "acme")
    (line,) = (await place.api.get("/v1/usage")).json()["data"]
    assert (line["requests"], line["prompt_tokens"], line["device_seconds"]) == (2, 20, 2)


async def test_readiness_and_metrics_name_the_queue(place: Place) -> None:
    await place.send("model-a")
    name = "gristmill_gateway_submitted_requests_total"
    assert REGISTRY.get_sample_value(name, {"queue": place.first.keys.queue}) == 1
    assert (await place.api.get("/readyz")).status_code == 200
    await place.second.redis.set(place.second.keys.format, "2")
    unready = await place.api.get("/readyz")
    assert (
        unready.status_code,
        f"queue {place.second.keys.queue} has format 2" in unready.text,
    ) == (503, True)


async def test_a_file_of_several_models_is_one_batch(place: Place) -> None:
    """The steward of each queue runs its lines; a model without a worker waits, and the rest goes on."""
    models = ("model-a", "model-b", "org/asleep")
    lines = [chat(f"c{i}", model=models[i % 3]) for i in range(12)]
    store = place.gateway.gateway.batches.store
    second = Batches(store.of_queue(place.second.keys.queue))
    workers = (
        SettlingWorker(place.first, facts=serving("model-a")),
        SettlingWorker(place.second, facts=serving("model-b,org/asleep")),
    )
    await place.serve(place.second, "model-b")
    async with stewarded(place.gateway.gateway.batches), workers[0].running():
        form = {"file": ("in.jsonl", jsonl(lines))}
        uploaded = await place.api.post("/v1/files", files=form, data={"purpose": "batch"})
        file = uploaded.json()["id"]
        new = {"input_file_id": file, "endpoint": "/v1/chat/completions"}
        headers = {"Idempotency-Key": "once"}
        made = (await place.api.post("/v1/batches", json=new, headers=headers)).json()
        again = (await place.api.post("/v1/batches", json=new, headers=headers)).json()
        assert made["id"] == again["id"]

        async def seen() -> dict[str, Any]:
            return dict((await place.api.get(f"/v1/batches/{made['id']}")).json())

        while (await seen())["request_counts"]["completed"] < 4:
            await asyncio.sleep(0.02)
        assert (await seen())["status"] == "in_progress"
        child = child_id(made["id"], place.second.keys.queue)
        assert (await place.api.get(f"/v1/batches/{child}")).status_code == 404
        assert (await place.api.get("/v1/tenant")).json()["usage"]["batches"] == 1
        async with stewarded(second), workers[1].running():
            while (batch := await seen())["status"] != "completed":
                await asyncio.sleep(0.02)
    assert (batch["request_counts"]["completed"], batch["order"]) == (12, "input")
    listed = (await place.api.get("/v1/batches")).json()["data"]
    assert [each["id"] for each in listed] == [made["id"]]
    content = (await place.api.get(f"/v1/files/{batch['output_file_id']}/content")).text
    assert [orjson.loads(row)["custom_id"] for row in content.splitlines()] == [
        f"c{i}" for i in range(12)
    ]


async def test_purge_removes_the_notes_of_a_tenants_requests(place: Place, tmp_path: Path) -> None:
    await place.send("model-a", headers={"Idempotency-Key": "once"})
    redis: Any = place.first.redis
    note = DirectoryKeys().request_queue("acme.once")
    assert 0 < await redis.ttl(note) <= 2 * 24 * 3600
    await purge_tenant(Tenants(redis), [place.gateway.gateway.batches.store], "acme", settle_s=0)
    assert not await redis.exists(note)
    assert await Tenants(redis).get("acme") is None


def test_settings_name_queues_and_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRISTMILL_QUEUE", "a")
    monkeypatch.setenv("GRISTMILL_GATEWAY_QUEUES", "b, c,a")
    monkeypatch.setenv("GRISTMILL_GATEWAY_MODELS", "org/m=1=b, n=a")
    settings = read_settings(GatewaySettings)
    assert list(settings.queues) == ["a", "b", "c"]
    assert settings.gateway_models == {"org/m=1": "b", "n": "a"}
    for wrong, message in (("m=d", "GRISTMILL_GATEWAY_QUEUES"), ("m", "model=queue")):
        monkeypatch.setenv("GRISTMILL_GATEWAY_MODELS", wrong)
        with pytest.raises(SettingsError, match=message):
            read_settings(GatewaySettings)
