"""RQ's connection through each form of URL that it can use."""

import asyncio
from pathlib import Path

import pytest
from pydantic import SecretStr
from redis.exceptions import ConnectionError, ReadOnlyError
from rq.job import JobStatus
from servers import kill, running_sentinels
from stewards import STUB, steward_process

from gristmill.local.redis_server import running_server
from gristmill.producer.steward.job_registry import AllowedJob
from gristmill.producer.steward.rq_connection import check_access, rq_connect, shorten_timeouts
from gristmill.producer.steward.rq_queue import rq_queue_of
from gristmill.producer.steward.settings import StewardSettings
from gristmill.shared.errors import SettingsError


def test_a_socket(tmp_path: Path) -> None:
    path = tmp_path / "redis.sock"
    with running_server(options=("--unixsocket", str(path))):
        redis = rq_connect(f"unix://{path}?db=3")
        check_access(redis)
        shorten_timeouts(redis)
        job = rq_queue_of(redis, "test", AllowedJob).enqueue("note", "batch_x")
        assert job.get_status() == JobStatus.QUEUED
        redis.close()


@pytest.mark.alone
async def test_sentinels(tmp_path: Path) -> None:
    with running_sentinels() as servers:
        async with steward_process(STUB, servers.url, "test", tmp_path) as steward:
            redis = rq_connect(servers.url)
            job = rq_queue_of(redis, "test", AllowedJob).enqueue("note", "batch_x")
            await steward.until("job.finished", job=job.id)
            redis.close()
            code, seconds = await steward.terminate()
            assert code == 0
            assert seconds < 4


def test_a_cluster_is_refused_by_name() -> None:
    with pytest.raises(SettingsError, match="RQ_REDIS_URL"):
        StewardSettings(redis_url=SecretStr("redis+cluster://a:1,b:2"))


@pytest.mark.timeout(90)
async def test_a_steward_goes_on_after_a_failover(tmp_path: Path) -> None:
    with running_sentinels() as servers:
        async with steward_process(STUB, servers.url, "test", tmp_path) as steward:
            kill(servers.primary)
            while servers.primary_now() == servers.primary:
                await asyncio.sleep(0.1)
            await steward.until("job.finished", job=await _enqueued(servers.url))
            assert (await steward.terminate())[0] == 0


async def _enqueued(url: str) -> str:
    """Enqueue a job as soon as the sentinels agree on a primary; returns its id."""
    while True:
        redis = rq_connect(url)
        try:
            return str(rq_queue_of(redis, "test", AllowedJob).enqueue("note", "batch_x").id)
        except (ConnectionError, ReadOnlyError):
            await asyncio.sleep(0.1)
        finally:
            redis.close()
