"""A server of one module's own, and two queues on it with a batch store, for the tests of batches of several queues."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from families import Family, open_family
from queues import fresh_queue

from gristmill.local.redis_server import running_server
from gristmill.shared.operations import Limits


@pytest.fixture(scope="module")
def family_url() -> Iterator[str]:
    """The URL of the server."""
    with running_server() as url:
        yield url


@pytest.fixture
async def family(family_url: str, tmp_path: Path) -> AsyncIterator[Family]:
    """Both queues, with the batches of the first."""
    async with fresh_queue(family_url, Limits(lease_ms=10_000)) as queue:
        yield open_family(queue, tmp_path)
