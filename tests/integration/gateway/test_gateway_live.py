"""Live requests: OpenAI's own paths answer as the engine does; limits, time-outs, repeats and clients that go away."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from gateways import RunningGateway, gateway_settings, problem, running_gateway
from queues import ERROR, claim, open_worker, settlement
from workers import local_worker, settings_for

from gristmill.producer.gateway.live_limit import AT_RANDOM, OLDEST
from gristmill.producer.gateway.routes_live import LIVE, REQUEST_ID
from gristmill.producer.tenants import Tenants
from gristmill.shared.audit import audit
from gristmill.shared.errors import LimitReached
from gristmill.shared.keys import DirectoryKeys
from gristmill.shared.queue import Queue
from gristmill.shared.request import Request
from gristmill.worker.engine import StubEngine

CHAT = {"model": "stub", "messages": [{"role": "user", "content": "one two"}], "max_tokens": 3}
TEXT = {"model": "stub", "prompt": "one two", "max_tokens": 3}
PATH, TEXT_PATH = "/v1/chat/completions", "/v1/completions"


async def until_queued(queue: Queue, number: int = 1) -> None:
    while (await queue.stats()).counters.get("queued", 0) != number:
        await asyncio.sleep(0.01)


async def only_id(queue: Queue) -> str:
    """Return the id of the only request of tenant acme, which waits in lane high."""
    await until_queued(queue)
    found: Any = await queue.redis.lrange(queue.keys.waiting("high", "acme"), 0, -1)
    (request_id,) = found
    return str(request_id.decode())


# -- the answer --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("worker")
async def test_the_answer_is_that_of_the_engine(api: httpx.AsyncClient) -> None:
    engine = StubEngine()
    await engine.start()
    for path, body in ((PATH, CHAT), (TEXT_PATH, TEXT), (PATH, CHAT | {"max_tokens": -1})):
        answer = await api.post(path, json=body)
        expected = await engine.post(path, httpx.Request("POST", "/", json=body).content)
        assert answer.status_code == expected.status
        assert answer.json() == httpx.Response(200, content=expected.body).json()
        assert answer.headers[REQUEST_ID].startswith("acme.")
        assert answer.headers["Content-Type"] == "application/json"
        assert answer.headers.get("x-should-retry") == ("false" if expected.status >= 400 else None)


@pytest.mark.usefixtures("worker")
async def test_openais_client_works_with_a_changed_base_url(
    gateway: RunningGateway, key: str
) -> None:
    async with gateway.openai(key) as client:
        chat = await client.chat.completions.create(
            model="stub", messages=[{"role": "user", "content": "one two"}], max_tokens=3
        )
        assert chat.choices[0].message.content == "one two one"
        text = await client.completions.create(model="stub", prompt="a", max_tokens=2)
        assert text.choices[0].text == "a a"
        with pytest.raises(openai.NotFoundError) as caught:
            await client.embeddings.create(model="stub", input="x")
        assert caught.value.code == "endpoint_not_served"
        with pytest.raises(openai.NotFoundError) as caught:
            await client.completions.create(model="none", prompt="a")
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


@pytest.mark.usefixtures("worker")
async def test_the_answer_comes_at_once_and_not_with_the_next_look(api: httpx.AsyncClient) -> None:
    """The reply list names it; a look for all ids comes only every 5 s."""
    async with asyncio.timeout(4):
        for _ in range(5):
            assert (await api.post(PATH, json=CHAT)).status_code == 200


async def test_live_requests_use_the_lane_high_whatever_the_tenant_may(
    gateway: RunningGateway, queue: Queue
) -> None:
    key = await gateway.add_tenant("acme", max_priority="low")
    async with gateway.caller(key, **{"X-Request-Id": "mine"}) as api:
        call = asyncio.create_task(api.post(PATH, json=CHAT))
        request_id = await only_id(queue)
        refused = await api.post("/v1/requests", json={"body": CHAT, "priority": "high"})
        assert refused.status_code == 403
        await queue.cancel([request_id])
        answer = await call
    assert (answer.status_code, problem(answer)["code"]) == (409, "cancelled")
    assert answer.headers[REQUEST_ID] == request_id
    assert answer.headers["x-should-retry"] == "false"
    (result,) = await queue.results([request_id])
    assert result
    assert result.metadata == {"request_id": "mine"}


@pytest.mark.parametrize(
    ("error", "status"), [(ERROR, 500), ({"code": "engine_unavailable", "message": "away"}, 502)]
)
async def test_a_request_that_failed_without_an_answer_is_an_error_in_openais_form(
    api: httpx.AsyncClient, queue: Queue, error: dict[str, Any], status: int
) -> None:
    worker = await open_worker(queue)
    call = asyncio.create_task(api.post(PATH, json=CHAT))
    await only_id(queue)
    for _ in range(3):
        (claimed,) = await claim(queue, worker, 1)
        await queue.nack(worker, claimed, 0, error)
    answer = await call
    assert answer.status_code == status
    assert (problem(answer)["code"], problem(answer)["type"]) == (error["code"], "server_error")
    assert error["message"] in problem(answer)["message"]
    assert answer.headers["x-should-retry"] == "false"


# -- what is refused ---------------------------------------------------------------------------------


async def test_what_cannot_be_served_is_refused_by_name(
    api: httpx.AsyncClient, queue: Queue
) -> None:
    asked = {"model": "stub", "input": "x"}
    for name, value in {
        "store": True, "background": True, "previous_response_id": "resp_1", "conversation": {"id": "conv_1"},
    }.items():  # fmt: skip
        answer = await api.post("/v1/responses", json=asked | {name: value})
        assert (answer.status_code, problem(answer)["param"]) == (400, name)
        assert name in problem(answer)["message"]
    image = {"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest"}}
    bad: list[Any] = [{}, [], {"messages": [{"role": "user", "content": [image]}]}, {"prompt": "x"}]
    for body in bad:
        assert (await api.post(PATH, json=body)).status_code == 400
    assert (await api.post(PATH, content=b'{"messages": NaN}')).status_code == 400
    assert (await queue.stats()).counters.get("submitted", 0) == 0
    assert await queue.redis.zcard(DirectoryKeys().live("acme")) == 0


@pytest.mark.usefixtures("worker")
async def test_fields_of_an_envelope_have_no_meaning_in_an_openai_body(
    api: httpx.AsyncClient, queue: Queue
) -> None:
    body = TEXT | {
        "priority": 5,
        "id": "x",
        "tenant": "other",
        "batch": "b",
        "metadata": {"a": "b"},
    }
    answer = await api.post(TEXT_PATH, json=body)
    assert answer.status_code == 200
    (result,) = await queue.results([answer.headers[REQUEST_ID]])
    assert result
    assert (result.tenant, list(result.metadata or {})) == ("acme", ["request_id"])


@pytest.mark.parametrize("path", LIVE)
async def test_every_live_path_needs_a_key(gateway: RunningGateway, key: str, path: str) -> None:
    async with gateway.caller("wrong") as stranger:
        assert (await stranger.post(path, json=CHAT)).status_code == 401


# -- waits that end without an answer -----------------------------------------------------------------


async def test_after_the_time_limit_the_request_goes_on_under_the_id_of_the_504(
    redis_url: str, queue: Queue, tmp_path: Path
) -> None:
    settings = gateway_settings(redis_url, queue, tmp_path, gateway_live_timeout_s=0.2)
    async with running_gateway(settings) as gateway, gateway.caller() as api:
        answer = await api.post(PATH, json=CHAT)
        assert (answer.status_code, problem(answer)["code"]) == (504, "timeout")
        request_id = answer.headers[REQUEST_ID]
        assert f"GET /v1/requests/{request_id}" in problem(answer)["message"]
        assert answer.headers["x-should-retry"] == "false"
        assert f"no worker of queue {queue.keys.queue} lives" in problem(answer)["message"]
        async with local_worker(settings_for(redis_url, queue), StubEngine()):
            found = await api.get(f"/v1/requests/{request_id}", params={"wait": 20})
        assert found.json()["response"]["body"]["choices"][0]["message"]["content"] == "one two one"
        keyed = await api.post(PATH, json=CHAT, headers={"Idempotency-Key": "k"})
        assert "x-should-retry" not in keyed.headers
        assert int(keyed.headers["Retry-After"]) > 0


async def test_the_504_of_a_stream_says_that_no_worker_lives(
    redis_url: str, queue: Queue, tmp_path: Path
) -> None:
    settings = gateway_settings(redis_url, queue, tmp_path, gateway_live_timeout_s=0.05)
    async with running_gateway(settings) as gateway, gateway.caller() as api:
        answer = await api.post(PATH, json=CHAT | {"stream": True})
        assert answer.headers["x-should-retry"] == "false"
        headers = {"Idempotency-Key": "k"}
        keyed = await api.post(PATH, json=CHAT | {"stream": True}, headers=headers)
        assert "x-should-retry" not in keyed.headers
        assert int(keyed.headers["Retry-After"]) > 0
    assert (answer.status_code, keyed.status_code) == (504, 504)
    assert f"no worker of queue {queue.keys.queue} lives" in problem(answer)["message"]


async def test_a_504_blames_no_workers_while_one_lives(
    redis_url: str, queue: Queue, tmp_path: Path
) -> None:
    await open_worker(queue)
    settings = gateway_settings(redis_url, queue, tmp_path, gateway_live_timeout_s=0.05)
    async with running_gateway(settings) as gateway, gateway.caller() as api:
        answer = await api.post(PATH, json=CHAT)
    assert answer.status_code == 504
    assert "no worker" not in problem(answer)["message"]


async def test_a_client_that_goes_away_cancels_its_request(
    gateway: RunningGateway, key: str, queue: Queue
) -> None:
    async with gateway.caller(key) as api:
        call = asyncio.create_task(api.post(PATH, json=CHAT))
        request_id = await only_id(queue)
        call.cancel()
    while (result := (await queue.results([request_id]))[0]) is None:
        await asyncio.sleep(0.01)
    assert result.status == "cancelled"


async def test_a_client_that_goes_away_cancels_a_request_that_runs(
    gateway: RunningGateway, key: str, redis_url: str, queue: Queue
) -> None:
    async with local_worker(settings_for(redis_url, queue), StubEngine(token_delay_s=0.01)):
        async with gateway.caller(key) as api:
            call = asyncio.create_task(api.post(PATH, json=CHAT | {"max_tokens": 1_000_000}))
            while (await queue.stats()).counters.get("in_flight", 0) != 1:
                await asyncio.sleep(0.01)
            call.cancel()
        while (await queue.stats()).counters.get("in_flight", 0):
            await asyncio.sleep(0.01)


async def test_a_client_with_a_key_goes_away_and_its_repeat_gets_the_answer(
    gateway: RunningGateway, key: str, queue: Queue, redis_url: str
) -> None:
    headers = {"Idempotency-Key": "order-7"}
    async with gateway.caller(key, **headers) as api:
        call = asyncio.create_task(api.post(PATH, json=CHAT))
        assert await only_id(queue) == "acme.order-7"
        call.cancel()
    async with gateway.caller(key, **headers) as api:
        both = [asyncio.create_task(api.post(PATH, json=CHAT)) for _ in range(2)]
        async with local_worker(settings_for(redis_url, queue), StubEngine()):
            first, second = await asyncio.gather(*both)
        third = await api.post(PATH, json=CHAT)
        assert first.status_code == 200
        assert first.content == second.content == third.content
    assert (await queue.stats()).counters["submitted"] == 1


async def test_a_key_of_another_body_or_path_is_a_409(
    redis_url: str, queue: Queue, tmp_path: Path
) -> None:
    settings = gateway_settings(redis_url, queue, tmp_path, gateway_live_timeout_s=0.05)
    headers = {"Idempotency-Key": "k"}
    async with running_gateway(settings) as gateway, gateway.caller(**headers) as api:
        assert (await api.post(PATH, json=CHAT)).status_code == 504
        for path, body in ((PATH, CHAT | {"max_tokens": 4}), ("/v1/responses", {"input": "x"})):
            answer = await api.post(path, json=body)
            assert (answer.status_code, problem(answer)["code"]) == (409, "id_conflict")


async def test_a_stopping_gateway_waits_for_answers_and_names_the_request_in_the_end(
    redis_url: str, queue: Queue, tmp_path: Path
) -> None:
    settings = gateway_settings(redis_url, queue, tmp_path, drain_timeout_s=3)
    async with running_gateway(settings) as gateway, gateway.caller() as api:
        answered, left = (asyncio.create_task(api.post(path, json=body)) for path, body in ((PATH, CHAT), (TEXT_PATH, TEXT)))  # fmt: skip
        await until_queued(queue, 2)
        gateway.stop()
        worker = await open_worker(queue)
        for claimed in await claim(queue, worker, 2):
            if claimed.record.endpoint == PATH:
                await queue.ack(worker, [settlement(claimed)])
        assert (await answered).status_code == 200
        answer = await left
        assert (answer.status_code, problem(answer)["code"]) == (503, "gateway_stopping")
        assert answer.headers[REQUEST_ID] in problem(answer)["message"]


# -- the limit of live requests ------------------------------------------------------------------------


async def test_live_requests_of_a_tenant_are_bounded_for_all_gateways_together(
    gateway: RunningGateway, redis_url: str, queue: Queue, tmp_path: Path
) -> None:
    key = await gateway.add_tenant("small", max_live=2)
    second = running_gateway(gateway_settings(redis_url, queue, tmp_path))
    async with second as twin, gateway.caller(key) as here, twin.caller(key) as there:
        calls = [asyncio.create_task(api.post(PATH, json=CHAT)) for api in (here, there)]
        await until_queued(queue, 2)
        for api in (here, there):
            full = await api.post(PATH, json=CHAT)
            assert (full.status_code, problem(full)["code"]) == (429, "limit_reached")
            assert int(full.headers["Retry-After"]) > 0
            message = problem(full)["message"]
            assert "2 of 2 live requests (max_live)" in message
            assert "gristmill tenant change small --max-live NUMBER" in message
        shown = (await here.get("/v1/tenant")).json()
        assert (shown["limits"]["max_live"], shown["usage"]["live"]) == (2, 2)
        async with local_worker(settings_for(redis_url, queue), StubEngine()):
            assert {call.status_code for call in await asyncio.gather(*calls)} == {200}
            assert (await there.get("/v1/tenant")).json()["usage"]["live"] == 0
            for _ in range(5):
                assert (await here.post(PATH, json=CHAT)).status_code == 200


async def test_a_request_counts_while_it_is_in_the_queue_and_not_as_long_as_its_call(
    gateway: RunningGateway, queue: Queue
) -> None:
    """A caller that hangs up does not get a free place for each request that goes on without it."""
    key = await gateway.add_tenant("small", max_live=1)
    async with gateway.caller(key, **{"Idempotency-Key": "k"}) as api:
        call = asyncio.create_task(api.post(PATH, json=CHAT))
        await until_queued(queue)
        call.cancel()
    async with gateway.caller(key) as api:
        assert (await api.post(PATH, json=CHAT)).status_code == 429
        again = asyncio.create_task(api.post(PATH, json=CHAT, headers={"Idempotency-Key": "k"}))
        await queue.cancel(["small.k"])
        assert (await again).status_code == 409
        call = asyncio.create_task(api.post(PATH, json=CHAT))
        await until_queued(queue)
        call.cancel()


async def test_a_conflict_frees_no_place(gateway: RunningGateway, queue: Queue) -> None:
    key = await gateway.add_tenant("small", max_live=1)
    headers = {"Idempotency-Key": "k"}
    async with gateway.caller(key) as api:
        call = asyncio.create_task(api.post(PATH, json=CHAT, headers=headers))
        await until_queued(queue)
        conflict = await api.post(PATH, json=CHAT | {"max_tokens": 4}, headers=headers)
        assert conflict.status_code == 409
        assert (await api.post(PATH, json=CHAT)).status_code == 429
        await queue.cancel(["small.k"])
        assert problem(await call)["code"] == "cancelled"


async def test_a_repeat_of_an_ended_request_passes_the_limit(
    gateway: RunningGateway, queue: Queue, redis_url: str
) -> None:
    key = await gateway.add_tenant("small", max_live=1)
    headers = {"Idempotency-Key": "k"}
    async with gateway.caller(key) as api:
        async with local_worker(settings_for(redis_url, queue), StubEngine()):
            first = await api.post(PATH, json=CHAT, headers=headers)
        call = asyncio.create_task(api.post(PATH, json=CHAT))
        await until_queued(queue)
        assert (await api.post(PATH, json=CHAT)).status_code == 429
        again = await api.post(PATH, json=CHAT, headers=headers)
        assert (again.status_code, again.content) == (200, first.content)
        call.cancel()


@pytest.mark.usefixtures("worker")
async def test_refused_requests_take_no_place(gateway: RunningGateway) -> None:
    key = await gateway.add_tenant("small", max_live=1)
    async with gateway.caller(key) as api:
        for _ in range(3):
            assert (await api.post("/v1/embeddings", json={"input": "x"})).status_code == 404
        assert (await api.post(PATH, json=CHAT)).status_code == 200


async def test_places_of_a_killed_gateway_come_back(gateway: RunningGateway, queue: Queue) -> None:
    key = await gateway.add_tenant("small", max_live=1)
    tenant = await Tenants(queue.redis).require("small")
    await gateway.gateway.live_limit.add(tenant, queue, "small.submitted")
    await queue.submit([Request(id="small.submitted", tenant="small", body=b'{"prompt":"x"}')])
    async with gateway.caller(key) as api:
        assert (await api.post(PATH, json=CHAT)).status_code == 429
        await queue.cancel(["small.submitted"])
        assert await gateway.gateway.live_limit.number(tenant) == 0
        await queue.redis.zadd(
            DirectoryKeys().live("small"), {f"{queue.keys.queue}|small.never": 1}
        )
        assert await gateway.gateway.live_limit.number(tenant) == 0
    assert await audit(queue) == []


async def test_a_refused_call_looks_at_a_part_of_many_live_requests(
    gateway: RunningGateway, queue: Queue
) -> None:
    await gateway.add_tenant("big", max_live=10_000)
    tenant, key = await Tenants(queue.redis).require("big"), DirectoryKeys().live("big")
    name = queue.keys.queue
    await queue.redis.zadd(key, {f"{name}|big.{i}": 1 for i in range(10_000)})  # all have ended
    limit = gateway.gateway.live_limit
    number = await limit.number(tenant)  # some of the oldest are among those at random too
    assert 10_000 - OLDEST - AT_RANDOM <= number <= 10_000 - AT_RANDOM
    await queue.redis.zadd(key, {f"{name}|big.{i}": 2**50 for i in range(10_000)})  # none has
    with pytest.raises(LimitReached):
        await limit.add(tenant, queue, "big.new")
    await queue.redis.zadd(key, {f"{name}|big.0": 1})  # the oldest has
    await limit.add(tenant, queue, "big.new")
    assert await queue.redis.zscore(key, f"{name}|big.0") is None


async def test_ended_requests_behind_old_ones_that_wait_are_found(
    gateway: RunningGateway, queue: Queue
) -> None:
    await gateway.add_tenant("big", max_live=600)
    tenant, key = await Tenants(queue.redis).require("big"), DirectoryKeys().live("big")
    name = queue.keys.queue
    await queue.redis.zadd(key, {f"{name}|big.{i}": 2**50 for i in range(600)})
    for i in range(300, 600):
        await queue.redis.set(queue.keys.result(f"big.{i:03d}"), b"")
    await gateway.gateway.live_limit.add(tenant, queue, "big.new")
    assert await queue.redis.zcard(key) < 600


async def test_a_flood_of_one_tenant_does_not_stop_another(
    gateway: RunningGateway, redis_url: str, queue: Queue
) -> None:
    flood = await gateway.add_tenant("flood", max_live=20)
    engine = StubEngine(token_delay_s=0.005, max_num_seqs=2)
    body = CHAT | {"max_tokens": 20}
    async with (
        local_worker(settings_for(redis_url, queue, scheduling="fair"), engine),
        gateway.caller(flood) as many,
        gateway.caller(await gateway.add_tenant("calm")) as calm,
    ):
        calls = [asyncio.create_task(many.post(PATH, json=body)) for _ in range(60)]
        while (
            await gateway.gateway.live_limit.number(await Tenants(queue.redis).require("flood"))
            < 20
        ):
            await asyncio.sleep(0.01)
        assert (await calm.post(PATH, json=body)).status_code == 200
        assert not all(call.done() for call in calls)
        codes = [answer.status_code for answer in await asyncio.gather(*calls)]
    assert codes.count(200) >= 20
    assert codes.count(429) + codes.count(200) == 60
