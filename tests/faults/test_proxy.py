"""The proxy leaves nothing open: what it leaked would be blamed on the test that runs when it is collected."""

import asyncio
import gc
from pathlib import Path

import pytest
from faults.cell import BINARIES, open_cell
from faults.proxy import Proxy

NUM_STEPS = 15
"""Of the event loop, from a client's death to the end of what serves it; ten are enough for it."""


async def test_a_proxy_that_closes_while_a_client_dies_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaks: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", leaks.append)
    async with open_cell(BINARIES[0], tmp_path) as cell:
        for num_steps in range(NUM_STEPS):
            async with Proxy(cell.redis.port) as proxy:
                reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
                writer.write(b"*1\r\n$4\r\nPING\r\n")
                assert await reader.readline() == b"+PONG\r\n"
                writer.transport.abort()
                for _ in range(num_steps):
                    await asyncio.sleep(0)
            gc.collect()
            assert leaks == []
