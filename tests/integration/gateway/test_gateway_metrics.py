"""What the gateway exports of its queues while no worker lives, and while Redis does not answer."""

import asyncio
import socket
import time
from pathlib import Path

import pytest
from batches import open_batches
from gateways import RunningGateway, gateway_settings, running_gateway
from prometheus_client.parser import text_string_to_metric_families
from queues import some_requests
from structlog.testing import capture_logs

from gristmill.producer import queue_metrics
from gristmill.producer.gateway.context import open_gateway
from gristmill.shared.queue import Queue

Sample = tuple[str, frozenset[tuple[str, str]]]


async def scraped(gateway: RunningGateway) -> dict[Sample, float]:
    async with gateway.caller() as client:
        text = (await client.get("/metrics")).text
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def key_of(name: str, queue: Queue, **labels: str) -> Sample:
    return name, frozenset({"queue": queue.keys.queue, **labels}.items())


async def test_the_gateway_tells_the_backlog_without_a_worker(
    gateway: RunningGateway, queue: Queue
) -> None:
    await queue.submit(some_requests(3, prompt_tokens=100, max_tokens=900))
    found = await scraped(gateway)
    assert found[key_of("gristmill_queue_readable", queue)] == 1
    assert found[key_of("gristmill_queue_requests", queue, state="queued")] == 3
    assert found[key_of("gristmill_queue_work_seconds", queue, state="queued")] == 3
    assert found[key_of("gristmill_queue_workers", queue, state="live")] == 0
    assert found[key_of("gristmill_batches_overdue_seconds", queue, work="steps")] == 0
    await queue.submit(some_requests(1))
    again = await scraped(gateway)
    waiting = key_of("gristmill_queue_requests", queue, state="queued")
    assert again[waiting] == 3, "a second scraper asks Redis no second time"


async def test_batches_of_every_queue_have_series(queue: Queue, tmp_path: Path) -> None:
    first = open_batches(queue, tmp_path).store
    second = first.of_queue(f"{queue.keys.queue}.b")
    await second.due.wake("steps", "acme", "b1", -90)
    names = [each.queue.keys.queue for each in (first, second)]
    page = (await queue_metrics.QueueMetrics(names).page([first, second])).decode()
    samples = [each for family in text_string_to_metric_families(page) for each in family.samples]
    overdue = {
        each.labels["queue"]: each.value
        for each in samples
        if each.name == "gristmill_batches_overdue_seconds" and each.labels["work"] == "steps"
    }
    assert (overdue[names[0]], overdue[names[1]] >= 90) == (0, True)


async def test_a_redis_that_does_not_answer_delays_no_scrape(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_metrics, "READ_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        async with running_gateway(gateway_settings(url, queue, tmp_path)) as gateway:
            began_s = time.monotonic()
            found = await scraped(gateway)
            assert time.monotonic() - began_s < 5
    assert found[key_of("gristmill_queue_readable", queue)] == 0
    assert key_of("gristmill_queue_requests", queue, state="queued") not in found
    assert ("gristmill_gateway_open_calls", frozenset()) in found


async def test_scrapes_at_the_same_time_share_a_failed_read(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_metrics, "READ_TIMEOUT_S", 0.2)
    monkeypatch.setattr(queue_metrics, "FRESH_S", 60)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        async with open_gateway(gateway_settings(url, queue, tmp_path)) as gateway:
            pages = (gateway.metrics.page([gateway.batches.store]) for _ in range(20))
            with capture_logs() as logs:
                await asyncio.gather(*pages)
    assert [line["event"] for line in logs] == ["metrics.incomplete"]


async def test_batches_that_no_steward_takes_are_overdue(queue: Queue, tmp_path: Path) -> None:
    due = open_batches(queue, tmp_path).store.due
    assert await due.overdue_s() == {"steps": 0, "files": 0, "webhooks": 0}
    await due.wake("files", "acme", "b1", -90)
    await due.wake("files", "other", "b2", -30)
    await due.wake("steps", "acme", "b3", 90)
    found = await due.overdue_s()
    assert (found["steps"], 90 <= found["files"] < 110) == (0, True)
    await queue.redis.set(queue.keys.batch_lease("b1"), "token")
    found = await due.overdue_s()
    assert 30 <= found["files"] < 50, "a steward holds the other"
