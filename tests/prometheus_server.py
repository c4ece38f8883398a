"""A true Prometheus for the tests: its rules, its targets, its answers."""

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from gristmill.local.processes import die_with_parent, free_port

WAIT_S = 60.0


@dataclass
class PrometheusServer:
    """A Prometheus that answers.

    Attributes:
        client: Asks it.
    """

    client: httpx.AsyncClient

    async def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Return labels and value of each sample."""
        answer = await self.client.get("/api/v1/query", params={"query": expression})
        assert answer.status_code == 200, (expression, answer.text)
        found = answer.json()["data"]["result"]
        return [(sample["metric"], float(sample["value"][1])) for sample in found]

    async def firing(self) -> list[dict[str, Any]]:
        """Return the alerts that fire."""
        alerts = (await self.client.get("/api/v1/alerts")).json()["data"]["alerts"]
        return [alert for alert in alerts if alert["state"] == "firing"]

    async def until_firing(self, name: str) -> dict[str, Any]:
        """Wait until an alert of this name fires; return it."""
        deadline = time.monotonic() + WAIT_S
        while True:
            found = await self.firing()
            if named := [alert for alert in found if alert["labels"]["alertname"] == name]:
                return named[0]
            assert time.monotonic() < deadline, found
            await asyncio.sleep(0.5)


@asynccontextmanager
async def running_prometheus(
    folder: Path, ports: Iterable[int], rules: dict[str, Any]
) -> AsyncIterator[PrometheusServer]:
    """Run a Prometheus that asks these ports of this machine once a second, for the length of a block."""
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
    targets = [{"targets": [f"127.0.0.1:{port}"]} for port in ports]
    configuration = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [{"job_name": "gristmill", "static_configs": targets}],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
    address = f"127.0.0.1:{free_port()}"
    options = ("--config.file=prometheus.yaml", "--storage.tsdb.path=data", f"--web.listen-address={address}")  # fmt: skip
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            ["prometheus", *options], cwd=folder, stdout=log, stderr=log, preexec_fn=die_with_parent,  # noqa: PLW1509  # one C call, no locks
        )  # fmt: skip
    try:
        async with httpx.AsyncClient(base_url=f"http://{address}", timeout=10) as client:
            await _until_ready(client, process, folder)
            yield PrometheusServer(client)
    finally:
        process.terminate()
        process.wait()


async def _until_ready(
    client: httpx.AsyncClient, process: "subprocess.Popen[bytes]", folder: Path
) -> None:
    while True:
        assert process.poll() is None, (folder / "prometheus.log").read_text()
        try:
            if (await client.get("/-/ready")).status_code == 200:
                return
        except httpx.TransportError:
            pass
        await asyncio.sleep(0.1)
