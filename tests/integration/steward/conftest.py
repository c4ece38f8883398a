"""One server, one queue and one folder for each test of the steward."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from stewards import Place, opened

from gristmill.local.redis_server import running_server


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    with running_server() as url:
        yield url


@pytest.fixture
async def place(server_url: str, tmp_path: Path) -> AsyncIterator[Place]:
    async with opened(server_url, tmp_path) as found:
        yield found
