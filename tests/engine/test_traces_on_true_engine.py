"""vLLM's own spans lie inside the trace of the request, and an OTLP endpoint that is gone does not hold up the end."""

import time
from pathlib import Path
from uuid import uuid4

import psutil
import pytest
from otlp import otlp_receiver, recording
from workers import TRUE, worker_process

from gristmill.local.processes import free_port
from gristmill.producer import Client
from gristmill.shared.connection import connect
from gristmill.shared.operations import Limits
from gristmill.shared.queue import Queue

pytestmark = [pytest.mark.long, pytest.mark.asyncio(loop_scope="session")]

CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}


def a_queue(redis_url: str) -> Queue:
    return Queue(connect(redis_url), f"test-{uuid4().hex[:12]}", Limits(lease_ms=3000))


async def test_vllms_span_is_a_child_of_the_engines(
    redis_url: str, argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = a_queue(redis_url)
    async with otlp_receiver() as receiver, Client(queue=queue) as client:
        async with (
            recording(receiver.url, monkeypatch),
            worker_process(TRUE, redis_url, queue, tmp_path / "log", ["--", *argv]) as worker,
        ):
            traced = await client.submit(CHAT)
            await client.wait(traced, 60)
            monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
            assert await worker.terminate() == 0
        log = (tmp_path / "log").read_text()
    (submit,) = receiver.named("submit")
    (engine,) = receiver.named("engine")
    (llm,) = receiver.named(
        "llm_request"
    )  # the warm-up has no trace, and vLLM's span of it is left out
    assert (llm.trace_id, llm.parent_id) == (submit.trace_id, engine.span_id)
    assert llm.service == engine.service == "gristmill-worker"
    assert llm.attributes["gen_ai.usage.completion_tokens"] == 4
    assert engine.start_ns <= llm.start_ns <= llm.end_ns <= engine.end_ns
    (ended,) = worker.events("request.completed")
    assert ended["trace_id"] == submit.trace_id
    assert "Traceback" not in log


async def test_worker_ends_in_time_without_its_otlp_endpoint(
    redis_url: str, argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, nowhere = a_queue(redis_url), f"http://127.0.0.1:{free_port()}"
    async with (
        recording(nowhere, monkeypatch),
        Client(queue=queue) as client,
        worker_process(TRUE, redis_url, queue, tmp_path / "log", ["--", *argv]) as worker,
    ):
        request_id = await client.submit(CHAT)
        assert (await client.wait(request_id, 60)).status == "succeeded"
        processes = [
            psutil.Process(worker.process.pid),
            *psutil.Process(worker.process.pid).children(True),
        ]
        started_s = time.monotonic()
        assert await worker.terminate() == 0
        assert time.monotonic() - started_s < 30
        assert not psutil.wait_procs(processes, timeout=10)[1]
        lost = worker.events("traces.lost")
        assert sum(each["num_spans"] for each in lost) >= 4  # and those of vLLM's start
