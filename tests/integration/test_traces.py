"""One trace of a request, from its submit to its ack, at a true OTLP receiver."""

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import opentelemetry.trace
import pytest
import structlog
from aiohttp import web
from batches import chat, create, open_batches, run
from gateways import gateway_settings, running_gateway
from otlp import PARENT, SPAN_ID, TRACE_ID, Receiver, otlp_receiver, recording
from queues import claim, die, fresh_queue, open_worker
from workers import local_worker, settings_for

from gristmill.local.redis_server import running_server
from gristmill.producer import Client, SyncClient
from gristmill.shared import span_export
from gristmill.shared.connection import connect
from gristmill.shared.errors import EngineUnavailable
from gristmill.shared.operations import Limits
from gristmill.shared.queue import Queue
from gristmill.shared.request import COMPLETIONS, Request
from gristmill.shared.settings import QueueSettings
from gristmill.worker.engine import RemoteEngine, Response, StubEngine

BODY = {"model": "stub", "prompt": "one two", "max_tokens": 3}
CLAIM = ["wait in queue", "engine", "ack"]


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with running_server() as url:
        yield url


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[Queue]:
    async with fresh_queue(redis_url, Limits(lease_ms=10_000)) as queue:
        yield queue


@pytest.fixture
async def client(queue: Queue, redis_url: str) -> AsyncIterator[Client]:
    async with Client(queue=Queue(connect(redis_url), queue.keys.queue, queue.limits)) as client:
        yield client


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with otlp_receiver() as receiver:
        yield receiver


class Flaky(StubEngine):
    """Fails at first, then answers as the stub does."""

    def __init__(self, *fails: Exception) -> None:
        super().__init__()
        self._fails = iter(fails)

    async def post(self, endpoint: str, body: bytes, **options: Any) -> Response:
        if error := next(self._fails, None):
            raise error
        return await super().post(endpoint, body, **options)


async def test_one_trace_leads_from_the_callers_header_to_the_ack(
    queue: Queue,
    redis_url: str,
    receiver: Receiver,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    headers = {"traceparent": PARENT, "tracestate": "vendor=value"}
    merge = structlog.contextvars.merge_contextvars
    with structlog.testing.capture_logs(processors=[merge]) as logs:
        async with (
            recording(receiver.url, monkeypatch),
            running_gateway(gateway_settings(redis_url, queue, tmp_path)) as gateway,
            local_worker(settings_for(redis_url, queue), StubEngine()),
            gateway.caller(await gateway.add_tenant("acme")) as api,
        ):
            answer = await api.post(COMPLETIONS, json=BODY, headers=headers)
            assert answer.status_code == 200
            await api.get("/healthz", headers=headers)
    (call,) = receiver.named(f"POST {COMPLETIONS}")
    assert (call.trace_id, call.parent_id, call.service) == (TRACE_ID, SPAN_ID, "test")
    assert call.attributes["http.response.status_code"] == 200
    (submit,) = receiver.named("submit")
    assert (submit.trace_id, submit.parent_id) == (TRACE_ID, call.span_id)
    (wait,), (engine,), (ack,) = (receiver.named(name, TRACE_ID) for name in CLAIM)
    assert {each.parent_id for each in (wait, engine, ack)} == {submit.span_id}
    assert wait.end_ns <= engine.start_ns + 50_000_000  # Redis's milliseconds
    assert engine.start_ns <= engine.end_ns <= ack.end_ns
    assert engine.attributes["gen_ai.usage.output_tokens"] == 3
    assert ack.attributes["gristmill.status"] == "succeeded"
    assert ack.attributes["gristmill.code"] == 1
    assert len(receiver.spans) == 5
    events = {line["event"]: line.get("trace_id") for line in logs}
    assert events["request.completed"] == events["call.answered"] == TRACE_ID


@pytest.mark.parametrize("header", ["garbage", f"ff-{TRACE_ID}-{SPAN_ID}-01"])
async def test_malformed_header_begins_a_new_trace(
    header: str, queue: Queue, redis_url: str, receiver: Receiver, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    async with (
        recording(receiver.url, monkeypatch),
        running_gateway(gateway_settings(redis_url, queue, tmp_path)) as gateway,
        gateway.caller(await gateway.add_tenant("acme")) as api,
    ):
        answer = await api.get("/v1/models", headers={"traceparent": header})
        assert answer.status_code == 200
        two = await api.get(
            "/v1/models", headers=[("traceparent", PARENT), ("traceparent", PARENT)]
        )
        assert two.status_code == 200
    calls = receiver.named("GET /v1/models")
    assert [call.parent_id for call in calls] == ["", ""]
    assert TRACE_ID not in {call.trace_id for call in calls}


async def test_retry_and_death_show_in_the_trace(
    queue: Queue,
    client: Client,
    redis_url: str,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with recording(receiver.url, monkeypatch):
        request = Request.from_body(BODY, endpoint=COMPLETIONS)
        await client.submit(request)
        dead = await open_worker(queue)
        await claim(queue, dead, 1)
        await die(queue, dead)
        settings = settings_for(redis_url, queue, backoff_base_s=0.01)
        engine = Flaky(RuntimeError("once"))
        async with local_worker(settings, engine):
            result = await client.wait(request.id, 20)
    assert result.status == "succeeded"
    (submit,) = receiver.named("submit")
    assert submit.parent_id == ""
    ours = [each for each in receiver.spans if each is not submit]
    assert {each.trace_id for each in ours} == {submit.trace_id}
    assert {each.parent_id for each in ours} == {submit.span_id}
    deliveries = [
        (each.attributes["gristmill.delivery"], each.attributes["gristmill.crashes"], each.is_error)
        for each in receiver.named("engine")
    ]
    assert deliveries == [(2, 1, True), (3, 1, False)]
    (nack,) = receiver.named("nack")
    assert nack.attributes["gristmill.code"] == "retried"
    assert len(receiver.named("wait in queue")) == 2
    assert len(receiver.named("ack")) == 1


async def test_release_shows_in_the_trace(
    queue: Queue,
    client: Client,
    redis_url: str,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with recording(receiver.url, monkeypatch):
        engine = Flaky(EngineUnavailable("not now", is_refusal=True))
        async with local_worker(settings_for(redis_url, queue, backoff_base_s=0.01), engine):
            request_id = await client.submit(Request.from_body(BODY, endpoint=COMPLETIONS))
            await client.wait(request_id, 20)
    (release,) = receiver.named("release")
    assert release.attributes["gristmill.delay_ms"] > 0
    assert [each.is_error for each in receiver.named("engine")] == [True, False]


async def test_submit_is_a_child_of_the_programs_span(
    queue: Queue,
    client: Client,
    redis_url: str,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = QueueSettings(redis_url=redis_url, queue=queue.keys.queue)

    def submit_in_thread() -> None:
        with SyncClient(settings) as sync:
            sync.submit(BODY)

    async with recording(receiver.url, monkeypatch):
        tracer = opentelemetry.trace.get_tracer("program")
        with tracer.start_as_current_span("program"):
            await client.submit_many([BODY, BODY])
            await asyncio.to_thread(submit_in_thread)
        unsampled = f"00-{TRACE_ID}-{SPAN_ID}-00"
        request_id = await client.submit(
            Request.from_body(BODY, endpoint=COMPLETIONS, facts={"traceparent": unsampled})
        )
    (program,) = receiver.named("program")
    submits = receiver.named("submit")
    assert [each.parent_id for each in submits] == [program.span_id] * 3
    claimed = await claim(queue, await open_worker(queue), 4)
    facts = {each.id: each.record.facts["traceparent"].split("-") for each in claimed}
    assert facts[request_id][1::2] == [TRACE_ID, "00"]
    assert {parts[1] for id_, parts in facts.items() if id_ != request_id} == {program.trace_id}


async def test_each_line_of_a_batch_has_a_trace_with_a_link_to_the_batch(
    queue: Queue,
    redis_url: str,
    receiver: Receiver,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batches = open_batches(queue, tmp_path)
    async with recording(receiver.url, monkeypatch):
        with opentelemetry.trace.get_tracer("t").start_as_current_span("create"):
            batch = await create(batches, [chat(f"line-{i}") for i in range(3)])
        async with local_worker(settings_for(redis_url, queue), StubEngine()):
            await run(batches, batch)
    (created,) = receiver.named("create")
    submits = receiver.named("submit")
    assert len({each.trace_id for each in submits} | {created.trace_id}) == 4
    for each in submits:
        assert (each.parent_id, each.attributes["gristmill.batch"]) == ("", batch.id)
        assert each.links == [f"{created.trace_id}-{created.span_id}"]
        assert [len(receiver.named(name, each.trace_id)) for name in CLAIM] == [1, 1, 1]


async def test_sampler_that_leaves_a_request_out_leaves_its_record_as_it_is(
    queue: Queue, client: Client, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    async with recording(receiver.url, monkeypatch):
        await client.submit(BODY)
    (claimed,) = await claim(queue, await open_worker(queue), 1)
    assert claimed.record.facts == {}
    assert receiver.spans == []


async def test_server_behind_vllm_url_gets_the_span_of_the_engine(
    queue: Queue,
    client: Client,
    redis_url: str,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    got: list[str] = []

    async def answer(call: web.Request) -> web.Response:
        if call.method == "POST":
            got.append(call.headers.get("traceparent", ""))
            return web.json_response({"choices": [{"text": "a", "finish_reason": "stop"}]})
        return web.json_response({"object": "list", "data": [{"id": "stub", "object": "model"}]})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    engine = RemoteEngine(f"http://127.0.0.1:{runner.addresses[0][1]}")
    settings = settings_for(redis_url, queue)
    async with recording(receiver.url, monkeypatch), local_worker(settings, engine):
        request_id = await client.submit(Request.from_body(BODY, endpoint=COMPLETIONS))
        await client.wait(request_id, 20)
    await engine.close()
    await runner.cleanup()
    (span,) = receiver.named("engine")
    assert [header[:52] for header in got] == [f"00-{span.trace_id}-{span.span_id}"]


async def test_dead_endpoint_costs_spans_and_no_time(
    queue: Queue, client: Client, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes connections and never answers, which is worse than none."""
    lost: list[int] = []
    number = 300
    monkeypatch.setattr(span_export, "FLUSH_S", 0.2)
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "64")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "32")
    with socket.create_server(("127.0.0.1", 0)) as hole:
        url = f"http://127.0.0.1:{hole.getsockname()[1]}"
        async with recording(url, monkeypatch, lost.append) as tracing:
            async with local_worker(settings_for(redis_url, queue), StubEngine()):
                bodies = [BODY | {"prompt": f"word{i}"} for i in range(number)]
                results = [each async for each in client.as_completed(bodies)]
            started_s = time.monotonic()
            await asyncio.to_thread(tracing.stop)
            assert time.monotonic() - started_s < 2
    assert [each.status for each in results] == ["succeeded"] * number
    assert sum(lost) == number * 4


def test_opentelemetry_is_not_needed_while_tracing_is_off() -> None:
    code = """
import sys
sys.modules["opentelemetry"] = None  # as if it were not installed
import gristmill.producer
from gristmill.producer.submit_spans import submit_spans
from gristmill.shared.request import Request
from gristmill.shared.trace_context import trace_headers, tracer
from gristmill.shared.tracing import start_tracing
assert start_tracing("test") is None
request = Request.from_body({"prompt": "x"})
with submit_spans([request], "q") as traced:
    assert traced[0] is request
assert trace_headers() == {} and tracer() is None
print("off")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "off\n"
