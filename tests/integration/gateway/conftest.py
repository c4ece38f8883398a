"""A queue, a gateway on it, two tenants and a worker that answers at once."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from gateways import RunningGateway, gateway_settings, running_gateway
from queues import fresh_queue
from workers import local_worker, settings_for

from gristmill.shared.operations import Limits
from gristmill.shared.queue import Queue
from gristmill.worker.engine import StubEngine


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[Queue]:
    async with fresh_queue(redis_url, Limits(lease_ms=10_000)) as queue:
        yield queue


@pytest.fixture
async def gateway(redis_url: str, queue: Queue, tmp_path: Path) -> AsyncIterator[RunningGateway]:
    async with running_gateway(gateway_settings(redis_url, queue, tmp_path / "files")) as gateway:
        yield gateway


@pytest.fixture
async def key(gateway: RunningGateway) -> str:
    """The API key of a tenant."""
    return await gateway.add_tenant("acme")


@pytest.fixture
async def api(gateway: RunningGateway, key: str) -> AsyncIterator[httpx.AsyncClient]:
    """A caller with the tenant's key."""
    async with gateway.caller(key) as client:
        yield client


@pytest.fixture
async def other(gateway: RunningGateway) -> AsyncIterator[httpx.AsyncClient]:
    """A caller with another tenant's key."""
    async with gateway.caller(await gateway.add_tenant("other")) as client:
        yield client


@pytest.fixture
async def worker(redis_url: str, queue: Queue) -> AsyncIterator[None]:
    async with local_worker(settings_for(redis_url, queue), StubEngine()):
        yield
