"""Servers for every test: a true Valkey from its wheel and a true Redis from the PATH."""

import os
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from redis.asyncio import Redis

from gristmill.shared.connection import connect
from gristmill.shared.queue import Limits, Queue
from gristmill.shared.server import running_server, server_binary


def pytest_configure() -> None:
    # A shell starts its background jobs with SIGINT ignored, and whatever the tests start inherits that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _server(kind: str) -> Path:
    if kind == "valkey":
        return server_binary()
    found = shutil.which("redis-server")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("CI must have redis-server on the PATH; .ci/run installs it")
        pytest.skip("no redis-server on the PATH")
    return Path(found)


@pytest.fixture(scope="session", params=["valkey", "redis"])
def any_redis_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a server; a test that asks for it runs on each kind."""
    with running_server(_server(request.param)) as url:
        yield url


@pytest.fixture(params=["valkey", "redis"])
def any_empty_redis_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a server with nothing in it, for a test that scans it again and again."""
    with running_server(_server(request.param)) as url:
        yield url


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """The URL of one server, for tests in which its kind does not matter."""
    with running_server() as url:
        yield url


@pytest.fixture
async def redis(any_redis_url: str) -> AsyncIterator[Redis]:
    client = connect(any_redis_url)
    yield client
    await client.aclose()


@pytest.fixture
def limits() -> Limits:
    return Limits(max_depth=100_000, max_bytes=2**30, result_ttl_ms=600_000, lease_ms=10_000)


@pytest.fixture
def queue(redis: Redis, limits: Limits) -> Queue:
    """A queue of its own for each test, on each kind of server."""
    return Queue(redis, f"test-{uuid4().hex[:12]}", limits)
