"""Single requests over HTTP: wait, repeat, cancel, refusal, and isolation between tenants."""

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateways import RunningGateway, gateway_settings, problem, running_gateway
from workers import STUB, worker_process

from gristmill.producer.gateway.context import MAX_SUBMITTING
from gristmill.shared.audit import audit
from gristmill.shared.keys import DirectoryKeys
from gristmill.shared.queue import Queue

PLAIN = {"prompt": "one two", "max_tokens": 3}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


async def submitted(api: httpx.AsyncClient, body: Any = PLAIN, **headers: str) -> str:
    answer = await api.post("/v1/requests", json=body, headers=headers)
    assert answer.status_code == 202, answer.text
    request_id: str = answer.json()["id"]
    return request_id


@pytest.mark.usefixtures("worker")
async def test_a_request_is_queued_and_its_result_waited_for(api: httpx.AsyncClient) -> None:
    for body in (PLAIN, CHAT, {"endpoint": "/v1/completions", "body": PLAIN, "priority": "low"}):
        answer = await api.post("/v1/requests", json=body)
        assert answer.status_code == 202
        queued = answer.json()
        assert (queued["object"], queued["status"]) == ("request", "queued")
        assert queued["id"].startswith("acme.")
        assert answer.headers["Location"] == f"/v1/requests/{queued['id']}"
        found = (await api.get(answer.headers["Location"], params={"wait": 20})).json()
        assert (found["id"], found["status"]) == (queued["id"], "succeeded")
        assert found["response"]["status_code"] == 200
        assert found["response"]["body"]["choices"]
        assert found["finished_at"] >= found["created_at"]


@pytest.mark.usefixtures("worker")
async def test_prefer_wait_answers_with_the_result(api: httpx.AsyncClient) -> None:
    headers = {"Prefer": "respond-async, wait=20"}
    answer = await api.post("/v1/requests", json=PLAIN, headers=headers)
    assert (answer.status_code, answer.headers["Preference-Applied"]) == (200, "wait=20")
    assert answer.json()["response"]["body"]["choices"][0]["text"] == "one two one"


async def test_fields_without_effect_are_warnings_of_the_answer(api: httpx.AsyncClient) -> None:
    body = {"prompt": "one", "max_token": 3}
    for headers in ({}, {"Prefer": "wait=0"}):
        answer = await api.post("/v1/requests", json=body, headers=headers)
        assert answer.status_code == 202
        (warning,) = answer.json()["warnings"]
        assert "'max_token' (did you mean 'max_tokens'?)" in warning
    assert (await api.post("/v1/requests", json=PLAIN)).json()["warnings"] is None


async def test_prefer_wait_without_a_worker_answers_202(api: httpx.AsyncClient) -> None:
    answer = await api.post("/v1/requests", json=PLAIN, headers={"Prefer": "wait=0"})
    assert (answer.status_code, answer.json()["status"]) == (202, "queued")


async def test_a_wait_ends_at_the_cap(redis_url: str, queue: Queue, tmp_path: Path) -> None:
    settings = gateway_settings(redis_url, queue, tmp_path, gateway_max_wait_s=0.1)
    async with running_gateway(settings) as gateway, gateway.caller() as api:
        answer = await api.post("/v1/requests", json=PLAIN, headers={"Prefer": "wait=3600"})
        assert answer.status_code == 202


async def test_calls_that_wait_end_when_the_gateway_stops(
    gateway: RunningGateway, api: httpx.AsyncClient
) -> None:
    request_id = await submitted(api)
    waiting = asyncio.create_task(api.get(f"/v1/requests/{request_id}", params={"wait": 30}))
    while not gateway.gateway.models.queues[0].client._waiter._awaited:
        await asyncio.sleep(0.01)
    gateway.stop()
    answer = await asyncio.wait_for(waiting, 5)
    assert (answer.status_code, answer.json()["status"]) == (200, "queued")


async def test_an_idempotency_key_names_the_request(
    api: httpx.AsyncClient, queue: Queue, worker: None
) -> None:
    headers = {"Idempotency-Key": "order-7"}
    assert await submitted(api, **headers) == "acme.order-7"
    await api.get("/v1/requests/acme.order-7", params={"wait": 20})
    again = await api.post("/v1/requests", json=PLAIN, headers=headers)
    assert (again.status_code, again.json()["status"]) == (200, "succeeded")
    assert (await queue.stats()).counters["submitted"] == 1
    conflict = await api.post("/v1/requests", json=PLAIN | {"prompt": "else"}, headers=headers)
    assert (conflict.status_code, problem(conflict)["code"]) == (409, "id_conflict")
    both = await api.post("/v1/requests", json=PLAIN | {"id": "x"}, headers=headers)
    assert both.status_code == 400
    assert await submitted(api, PLAIN | {"id": "x"}) == "acme.x"


async def test_a_cancelled_request_says_so(api: httpx.AsyncClient) -> None:
    request_id = await submitted(api, {"body": PLAIN, "delay_s": 60})
    assert (await api.get(f"/v1/requests/{request_id}")).json()["status"] == "delayed"
    answer = await api.delete(f"/v1/requests/{request_id}")
    assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
    assert answer.json()["error"]["code"] == "cancelled"
    assert (await api.delete(f"/v1/requests/{request_id}")).json()["status"] == "cancelled"


async def test_no_tenant_sees_or_ends_anothers_request(
    api: httpx.AsyncClient, other: httpx.AsyncClient, queue: Queue
) -> None:
    request_id = await submitted(api)
    for call in (other.get, other.delete):
        answer = await call(f"/v1/requests/{request_id}")
        assert (answer.status_code, problem(answer)["code"]) == (404, "not_found")
    assert await queue.status([request_id]) == [("queued", "")]
    key = {"Idempotency-Key": "same"}
    assert await submitted(api, **key) == "acme.same"
    assert await submitted(other, PLAIN | {"prompt": "else"}, **key) == "other.same"


async def test_a_caller_cannot_take_another_name(api: httpx.AsyncClient, queue: Queue) -> None:
    body = {
        "body": PLAIN,
        "tenant": "other",
        "id": "other.1",
        "metadata": {"request_id": "x", "a": 1},
    }
    headers = {"X-Request-Id": "mine"}
    assert await submitted(api, body, **headers) == "acme.other.1"
    assert await queue.tenants.load("other") == (0, 0)
    assert (await queue.tenants.load("acme"))[0] == 1
    await api.delete("/v1/requests/acme.other.1")
    found = (await api.get("/v1/requests/acme.other.1")).json()
    assert found["metadata"] == {"request_id": "mine", "a": 1}
    refused = await api.post("/v1/requests", json={"body": PLAIN, "batch": "batch_1"})
    assert refused.status_code == 400
    assert await audit(queue) == []


async def test_what_cannot_be_queued_is_refused(api: httpx.AsyncClient) -> None:
    image = {"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest"}}
    bad: list[Any] = [
        {}, [], {"prompt": "x", "stream": True}, {"body": PLAIN, "endpoint": "/v1/nothing"},
        {"body": PLAIN, "priority": "now"}, {"body": PLAIN, "unknown": 1}, {"prompt": "x", "id": "a b"},
        {"messages": [{"role": "user", "content": [image]}]}, {"body": PLAIN, "reply": "client-1"},
    ]  # fmt: skip
    for body in bad:
        answer = await api.post("/v1/requests", json=body)
        assert answer.status_code == 400, body
        assert problem(answer)["type"] == "invalid_request_error"
    for raw in (b"", b"{", b"\xff", b'{"prompt": NaN}'):
        assert (await api.post("/v1/requests", content=raw)).status_code == 400
    strange = await api.post("/v1/requests", json=PLAIN, headers={"Idempotency-Key": "a" * 129})
    assert (strange.status_code, problem(strange)["param"]) == (400, "idempotency-key")
    assert (await api.get("/v1/requests/acme.nothing")).status_code == 404
    assert (await api.get("/v1/requests/acme.x", params={"wait": "soon"})).status_code == 400


async def test_a_body_over_the_limit_is_413_before_it_is_read(
    redis_url: str, queue: Queue, tmp_path: Path
) -> None:
    settings = gateway_settings(redis_url, queue, tmp_path, max_request_bytes=1024)
    async with running_gateway(settings) as gateway, gateway.caller() as api:
        slightly = await api.post("/v1/requests", json={"prompt": "x" * 2000})
        assert (slightly.status_code, slightly.json()["error"]["code"]) == (400, "invalid_request")
        far = await api.post("/v1/requests", json={"prompt": "x" * 200_000})
        assert far.status_code == 413
        for answer in (slightly, far):
            message = answer.json()["error"]["message"]
            assert "ask the operator to raise GRISTMILL_MAX_REQUEST_BYTES" in message


async def test_a_tenant_asks_for_its_highest_lane_at_most(
    gateway: RunningGateway, api: httpx.AsyncClient, queue: Queue
) -> None:
    """Regression: everybody could flood the lane high, which is served before all others."""
    high = {"body": PLAIN, "priority": "high"}
    refused = await api.post("/v1/requests", json=high)
    error = problem(refused)
    assert (refused.status_code, error["type"]) == (403, "permission_error")
    assert (error["code"], error["param"]) == ("priority_not_allowed", "priority")
    assert error["message"].endswith(
        "priority 'high' is above 'normal', the highest of tenant acme; leave it out, or ask the operator:"
        " gristmill tenant change acme --max-priority high"
    )
    assert "Retry-After" not in refused.headers
    for highest, body in (("high", high), ("low", PLAIN)):
        key = await gateway.add_tenant(highest, max_priority=highest)
        async with gateway.caller(key) as caller:
            await submitted(caller, body)
        ids = await queue.redis.lrange(queue.keys.waiting(highest, highest), 0, -1)
        assert len(ids) == 1


# -- limits ------------------------------------------------------------------------------------------


async def test_depth_and_bytes_of_a_tenant_are_bounded(
    gateway: RunningGateway, other: httpx.AsyncClient
) -> None:
    async with gateway.caller(await gateway.add_tenant("small", max_depth=2)) as api:
        first, _ = await submitted(api), await submitted(api)
        full = await api.post("/v1/requests", json=PLAIN)
        assert (full.status_code, problem(full)["code"]) == (429, "limit_reached")
        assert int(full.headers["Retry-After"]) > 0
        await submitted(other)
        await api.delete(f"/v1/requests/{first}")
        await submitted(api)
    async with gateway.caller(await gateway.add_tenant("light", max_bytes=4096)) as api:
        assert (await api.post("/v1/requests", json={"prompt": "x" * 5000})).status_code == 429
        await submitted(api)


async def test_calls_a_minute_are_bounded_for_all_gateways_together(
    gateway: RunningGateway, redis_url: str, queue: Queue, tmp_path: Path, other: httpx.AsyncClient
) -> None:
    key = await gateway.add_tenant("slow", requests_per_minute=4)
    second = running_gateway(gateway_settings(redis_url, queue, tmp_path))
    async with second as twin, gateway.caller(key) as here, twin.caller(key) as there:
        answers = [await api.get("/v1/models") for _ in range(3) for api in (here, there)]
        assert [answer.status_code for answer in answers] == [200] * 4 + [429] * 2
        error = problem(answers[-1])
        assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
        assert 50 <= int(answers[-1].headers["Retry-After"]) <= 60
    assert (await other.get("/v1/models")).status_code == 200
    assert 0 < await queue.redis.ttl(DirectoryKeys().rate("slow")) <= 60


async def test_calls_a_minute_are_counted_by_the_clock_of_redis(
    gateway: RunningGateway, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: a gateway five minutes ahead made the others answer 429, with Retry-After: 275."""
    key = await gateway.add_tenant("slow", requests_per_minute=2)
    real = time.time
    async with gateway.caller(key) as api:
        for ahead_s in (300, 0, -300):
            monkeypatch.setattr(time, "time", lambda ahead_s=ahead_s: real() + ahead_s)
            answer = await api.get("/v1/models")
            assert answer.status_code == (429 if ahead_s == -300 else 200)
        assert 50 <= int(answer.headers["Retry-After"]) <= 60
        # A new primary whose clock is behind finds calls of the future.
        await queue.redis.lset(DirectoryKeys().rate("slow"), 1, str(int((real() + 900) * 1000)))
        assert (await api.get("/v1/models")).status_code == 200


async def test_a_full_queue_is_told(redis_url: str, queue: Queue, tmp_path: Path) -> None:
    settings = gateway_settings(redis_url, queue, tmp_path, max_depth=1)
    async with running_gateway(settings) as gateway, gateway.caller() as api:
        await submitted(api)
        full = await api.post("/v1/requests", json=PLAIN)
        assert (full.status_code, problem(full)["code"]) == (429, "queue_full")
        assert int(full.headers["Retry-After"]) > 0


# -- one thread through all logs ----------------------------------------------------------------------


async def test_a_request_can_be_followed_from_the_gateway_to_the_worker(
    api: httpx.AsyncClient, redis_url: str, queue: Queue, tmp_path: Path
) -> None:
    async with worker_process(STUB, redis_url, queue, tmp_path / "log") as worker:
        answer = await api.post(
            "/v1/requests", json=PLAIN, headers={"X-Request-Id": "trace-1", "Prefer": "wait=20"}
        )
        assert answer.headers["X-Request-Id"] == "trace-1"
        found = answer.json()
        assert found["metadata"]["request_id"] == "trace-1"
        assert await worker.terminate() == 0
    (line,) = worker.events("request.completed")
    assert (line["id"], line["tenant"]) == (found["id"], "acme")


@pytest.mark.usefixtures("worker")
async def test_a_model_that_nobody_serves_is_a_404_as_with_openai(api: httpx.AsyncClient) -> None:
    answer = await api.post("/v1/requests", json=PLAIN | {"model": "gpt-none"})
    assert answer.status_code == 404
    error = problem(answer)
    assert (error["type"], error["param"], error["code"]) == (
        "invalid_request_error",
        "model",
        "model_not_found",
    )
    assert "'gpt-none'; they serve stub" in error["message"]
    answer = await api.post("/v1/requests", json={"input": "text to embed"})
    assert (answer.status_code, problem(answer)["code"]) == (404, "endpoint_not_served")


async def test_the_engines_own_paths_say_where_to_go(api: httpx.AsyncClient) -> None:
    answer = await api.post("/tokenize", json={"prompt": "x"})
    assert (answer.status_code, problem(answer)["code"]) == (404, "not_found")
    for part in ("POST /v1/requests", '"endpoint": "/tokenize"', "POST /v1/batches"):
        assert part in problem(answer)["message"]


async def test_the_time_limit_of_a_submit_begins_at_its_turn(
    gateway: RunningGateway, api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """500 calls at once, each with 5 s from its arrival on, gave a 503 to the last of them."""
    submitting = gateway.gateway.submitting
    for _ in range(MAX_SUBMITTING):
        await submitting.acquire()
    monkeypatch.setattr("gristmill.producer.gateway.queuing.REDIS_RETRY_S", 0.0)
    call = asyncio.create_task(api.post("/v1/requests", json={"prompt": "x"}))
    while not submitting._waiters:
        await asyncio.sleep(0.01)
    monkeypatch.undo()
    submitting.release()
    assert (await call).status_code == 202
