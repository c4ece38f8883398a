"""Servers for every test: a true Valkey from its wheel, a cluster of it, and a true Redis from the PATH."""

import logging
import os
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import hypothesis
import pytest
import structlog
from queues import clear_directory
from servers import running_cluster, without_dangerous

from gristmill.local.redis_server import running_server, server_binary
from gristmill.shared.connection import connect
from gristmill.shared.operations import Limits
from gristmill.shared.queue import Queue
from gristmill.shared.redis_types import AnyRedis

# Before anything imports it: what it asserts is told as in a test.
pytest.register_assert_rewrite("faults.outcome")

# A deadline for an example would measure what else the machine does.
hypothesis.settings.register_profile("without deadline", hypothesis.settings.default, deadline=None)
hypothesis.settings.load_profile("without deadline")


@pytest.fixture
def plain_logging(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A process that has configured neither structlog nor logging; libraries in earlier tests may have."""
    was_configured, before = structlog.is_configured(), structlog.get_config()
    structlog.reset_defaults()
    logger, disabled_level = logging.getLogger("gristmill"), logging.root.manager.disable
    state = (logger.level, logger.disabled, logger.propagate)
    logging.disable(logging.NOTSET)
    logger.disabled, logger.propagate = False, False
    logger.setLevel(logging.WARNING)
    logger.addHandler(caplog.handler)
    yield
    logger.removeHandler(caplog.handler)
    logger.setLevel(state[0])
    _, logger.disabled, logger.propagate = state
    logging.disable(disabled_level)
    if was_configured:
        structlog.configure(**before)


@pytest.fixture(autouse=True)
def logs_of_later_tests() -> Iterator[None]:
    """Undo the setup of logs that a command in this process has left; it hides events from later tests."""
    was_configured, before = structlog.is_configured(), structlog.get_config()
    yield
    if structlog.get_config() == before:
        return
    structlog.reset_defaults()
    if was_configured:
        structlog.configure(**before)


def pytest_configure() -> None:
    # A shell starts its background jobs with SIGINT ignored, and whatever the tests start inherits that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


KINDS = ("valkey", "redis", "cluster")


def _redis_server() -> Path:
    found = shutil.which("redis-server")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("CI must have redis-server on the PATH; .ci/run installs it")
        pytest.skip("no redis-server on the PATH")
    return Path(found)


@contextmanager
def _running(kind: str) -> Iterator[str]:
    if kind == "cluster":
        with running_cluster() as url:
            yield url
    elif kind == "valkey":
        with running_server(server_binary()) as url:
            yield url
    else:
        with running_server(_redis_server()) as url:
            yield without_dangerous(url)


@pytest.fixture(scope="session", params=KINDS)
def any_redis_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a server or a cluster; a test that asks for it runs on each kind.

    On Redis we come in as a user without `@dangerous`: what a test does beyond that, `ask_all` does.
    """
    with _running(request.param) as url:
        yield url


@pytest.fixture(params=KINDS)
def any_empty_redis_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of one with nothing in it, for a test that scans it again and again."""
    with _running(request.param) as url:
        yield url


@pytest.fixture(scope="session")
def redis_server() -> Path:
    """The true Redis, which has TLS; the wheel's Valkey has none."""
    return _redis_server()


@pytest.fixture(scope="session", params=["server", "cluster"])
def redis_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of one server, without `@dangerous`, or of a cluster, where the kind of server does not matter."""
    if request.param == "cluster":
        with running_cluster() as url:
            yield url
    else:
        with running_server() as url:
            yield without_dangerous(url)


@pytest.fixture
async def redis(any_redis_url: str) -> AsyncIterator[AnyRedis]:
    client = connect(any_redis_url)
    yield client
    await client.aclose()


@pytest.fixture
def limits() -> Limits:
    return Limits(max_depth=100_000, max_bytes=2**30, result_ttl_ms=600_000, lease_ms=10_000)


@pytest.fixture
async def queue(redis: AnyRedis, limits: Limits) -> AsyncIterator[Queue]:
    """A queue of its own for each test, on each kind of server, and a directory without tenants."""
    await clear_directory(redis)
    yield Queue(redis, f"test-{uuid4().hex[:12]}", limits)
    await clear_directory(redis)
