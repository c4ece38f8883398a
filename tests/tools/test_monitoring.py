"""The dashboard and the alerts of k8s/monitoring on a true Prometheus, over a live queue."""

import asyncio
import json
import math
import re
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from gateways import RunningGateway, gateway_settings, running_gateway
from prometheus_server import WAIT_S, PrometheusServer, running_prometheus
from queues import some_requests
from stewards import TRUE, Place, opened, steward_process
from structlog.testing import capture_logs
from workers import STUB, WorkerProcess, worker_process

from gristmill.local.redis_server import running_server
from gristmill.producer.gateway import middleware
from gristmill.shared.operations import Limits
from gristmill.shared.queue import Queue
from gristmill.shared.tasks import end

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "k8s" / "monitoring"
VARIABLES = {"namespace": ".*", "queue": ".*", "__rate_interval": "10s"}

pytestmark = [
    pytest.mark.tools,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="no prometheus on the PATH"),
    pytest.mark.timeout(300),
]


def rules() -> dict[str, Any]:
    spec: dict[str, Any] = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["spec"]
    return spec


def queries() -> Iterator[tuple[str, str]]:
    """Yield the title of a panel and each of its queries, with Grafana's variables filled in."""
    for panel in json.loads((MONITORING / "dashboard.json").read_text())["panels"]:
        for target in panel.get("targets", []):
            yield (
                panel["title"],
                re.sub(r"\$(\w+)", lambda name: VARIABLES[name[1]], target["expr"]),
            )


def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules()))
    tests = shutil.copy(Path(__file__).with_name("alerts_test.yaml"), tmp_path)
    done = subprocess.run(["promtool", "test", "rules", tests], capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@dataclass
class Live:
    """A queue with work, its processes, and the Prometheus that watches them."""

    queue: Queue
    gateway: RunningGateway
    worker: WorkerProcess
    prometheus: PrometheusServer


@asynccontextmanager
async def live_system(folder: Path) -> AsyncIterator[Live]:
    async with AsyncExitStack() as stack:
        url = stack.enter_context(running_server(options=["--maxmemory", "512mb"]))
        place = await stack.enter_async_context(opened(url, folder))
        queue = Queue(place.batches.store.queue.redis, place.queue, Limits(lease_ms=3000))
        settings = gateway_settings(url, queue, folder / "storage")
        gateway = await stack.enter_async_context(running_gateway(settings))
        worker = await stack.enter_async_context(
            worker_process(
                STUB,
                url,
                queue,
                folder / "worker.log",
                STUB_TOKEN_DELAY_S="0.05",
                STUB_TTFT_S="0.05",
                MAX_IN_FLIGHT="16",
            )
        )
        steward = await stack.enter_async_context(steward_process(TRUE, url, place.queue, folder))
        await fill(place, queue)
        ports = [int(gateway.url.rpartition(":")[2]), worker.port, steward.port]
        one_second = rules()
        for rule in one_second["groups"][0]["rules"]:
            if "for" in rule:
                rule["for"] = "1s"
        prometheus = await stack.enter_async_context(running_prometheus(folder, ports, one_second))
        yield Live(queue, gateway, worker, prometheus)


async def fill(place: Place, queue: Queue) -> None:
    """Submit minutes of work of all lanes, some of it with deadlines, and a batch."""
    sizes: dict[str, Any] = {
        "prompt_tokens": 10,
        "max_tokens": 30,
        "body": b'{"prompt":"hi","max_tokens":30}',
    }
    for lane in ("high", "normal", "low"):
        await queue.submit(some_requests(500, priority=lane, deadline_s=900, **sizes))
    await place.create(prompts=50)


@asynccontextmanager
async def callers(gateway: RunningGateway) -> AsyncIterator[None]:
    """Call the gateway again and again for the length of a block."""

    async def call() -> None:
        async with gateway.caller() as client:
            while True:
                assert (await client.get("/v1/models")).status_code == 200
                await asyncio.sleep(0.2)

    calls = asyncio.create_task(call())
    try:
        yield
    finally:
        await end(calls)


async def test_every_panel_has_data_and_lost_workers_are_told(tmp_path: Path) -> None:
    middleware._call_seconds.clear()  # a route that only an earlier test called has the quantile NaN
    with capture_logs():
        async with live_system(tmp_path) as live:
            async with callers(live.gateway):
                for title, query in queries():
                    shown = await data_of(live.prometheus, query)
                    sys.stdout.write(f"{title} | {shown}\n")
            assert "GristmillNoWorker" not in str(await live.prometheus.firing())
            live.worker.kill()
            await live.queue.submit(
                some_requests(5, deadline_s=1)
            )  # the steward, who waits, ends them
            for _ in range(3):
                await live.queue.submit(some_requests(500, deadline_s=60))
            for name in ("NoWorker", "BacklogOverDeadline", "RequestsExpired"):
                alert = await live.prometheus.until_firing(f"Gristmill{name}")
                sys.stdout.write(f"firing: {alert['labels']} {alert['annotations']['summary']}\n")


async def data_of(prometheus: PrometheusServer, query: str) -> str:
    """Wait until a query returns numbers; return them with their labels."""
    deadline = time.monotonic() + WAIT_S
    while True:
        found = await prometheus.query(query)
        if found and not any(math.isnan(number) for _, number in found):
            return ", ".join(f"{'/'.join(labels.values())} {number:.4g}".strip() for labels, number in found)  # fmt: skip
        assert time.monotonic() < deadline, f"no data: {query}: {found}"
        await asyncio.sleep(0.5)
