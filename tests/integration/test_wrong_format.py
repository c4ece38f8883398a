"""Every entry point refuses a queue that another version wrote, with the same words; only its purge works."""

import asyncio
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from gristmill.producer import Client, WrongFormat
from gristmill.producer.gateway.context import open_gateway
from gristmill.producer.gateway.server import create_app
from gristmill.producer.gateway.settings import GatewaySettings
from gristmill.shared import cli
from gristmill.shared.connection import connect
from gristmill.shared.keys import Keys
from gristmill.shared.settings import QueueSettings
from gristmill.worker.settings import WorkerSettings
from gristmill.worker.wiring import greet_redis

COMMANDS = [
    "queue stats", "queue audit", "queue pause", "queue resume", "queue weights",
    "tenant purge acme --yes --queue QUEUE", "dead list", "dead purge x --yes", "cancel x", "status x", "result x", "batch list",
    "batch create in.jsonl", "submit in.jsonl",
]  # fmt: skip


@pytest.fixture(params=[None, "2"])
def old(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, redis_url: str
) -> Keys:
    """The keys of a queue that a version before 0.1.0 wrote, or a later one."""
    keys = Keys(f"test-{uuid4().hex[:12]}")
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.setenv("GRISTMILL_QUEUE", keys.queue)
    monkeypatch.setenv("GRISTMILL_STORAGE_URL", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.jsonl").write_text('{"prompt": "x"}\n')
    asyncio.run(_write(redis_url, keys, request.param))
    return keys


async def _write(redis_url: str, keys: Keys, format_of_queue: str | None) -> None:
    redis = connect(redis_url)
    await redis.hset(keys.stats, "submitted", "5")
    if format_of_queue:
        await redis.set(keys.format, format_of_queue)
    await redis.aclose()


def test_every_command_but_its_purge_refuses_it(
    old: Keys, capfd: pytest.CaptureFixture[str]
) -> None:
    for command in COMMANDS:
        words = command.replace("QUEUE", old.queue).split()
        assert cli.run(words) == cli.BAD_INPUT, command
        told = capfd.readouterr().err
        assert "this version" in told, command
        assert f"queue {old.queue}" in told, command
    assert cli.run(["queue", "purge", "--yes"]) == 0
    assert cli.run(["queue", "stats"]) == 0


@pytest.mark.usefixtures("old")
def test_client_and_worker_refuse_it_before_they_begin(redis_url: str) -> None:
    async def attempt() -> None:
        async with Client(QueueSettings()) as client:
            for call in (client.pause(), client.cancel(["x"]), client.submit({"prompt": "x"})):
                with pytest.raises(WrongFormat):
                    await call
        with pytest.raises(WrongFormat):
            await greet_redis(WorkerSettings(redis_url=redis_url))

    asyncio.run(attempt())


def test_gateway_answers_503_and_its_probe_says_why(old: Keys) -> None:
    async def attempt() -> None:
        async with open_gateway(GatewaySettings()) as gateway:
            transport = httpx.ASGITransport(create_app(gateway))
            async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as api:
                refused = await api.get("/v1/batches")
                assert refused.status_code == 503
                assert refused.json()["error"]["code"] == "wrong_format"
                assert old.queue not in refused.text
                probe = await api.get("/readyz")
                assert (probe.status_code, f"queue {old.queue}" in probe.text) == (503, True)

    asyncio.run(attempt())
