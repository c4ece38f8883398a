"""A gateway beside the workers: one tenant's uploads stall, and another tenant's must get through."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from gateways import RunningGateway, gateway_settings, running_gateway

from gristmill.producer.tenants import Tenants
from gristmill.shared.queue import Queue

NUM_STALLED = 6
"""As many connections once filled the memory that the gateway has for bodies."""

STALLED_BYTES = 40 * 2**20
TEXT = b"{}\n"
REPEAT_S = 0.05
REDIS_IS_AWAY = {503}
"""Statuses of a gateway whose Redis has a fault at that moment; the neighbour asks again."""


class Uploads:
    """Two tenants of one gateway.

    Args:
        gateway: The gateway.
        staller: Key of the tenant whose bodies stall.
        neighbour: Key of the tenant that uploads a small file.
    """

    def __init__(self, gateway: RunningGateway, staller: str, neighbour: str) -> None:
        self._gateway = gateway
        self._staller = staller
        self._api = gateway.caller(neighbour)
        self._stalled: list[asyncio.StreamWriter] = []

    async def stall(self) -> None:
        """Begin bodies that never end."""
        host, port = self._gateway.url.removeprefix("http://").split(":")
        for _ in range(NUM_STALLED):
            _, writer = await asyncio.open_connection(host, int(port))
            head = (
                f"POST /v1/requests HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self._staller}\r\n"
                f"Content-Length: {STALLED_BYTES}\r\n\r\n"
            )
            writer.write(head.encode() + b"{")
            await writer.drain()
            self._stalled.append(writer)

    async def get_through(self) -> None:
        """Upload a file as the neighbour, read it again, and delete it."""
        form = {"purpose": "batch"}
        uploaded = await self._answered("POST", "/v1/files", files={"file": TEXT}, data=form)
        path = f"/v1/files/{uploaded.json()['id']}"
        assert (await self._answered("GET", f"{path}/content")).content == TEXT
        files = (await self._answered("GET", "/v1/files")).json()["data"]
        for each in files:  # a try whose answer was lost has left one too
            await self._answered("DELETE", f"/v1/files/{each['id']}")

    async def close(self) -> None:
        """Close all connections."""
        await self._api.aclose()
        for writer in self._stalled:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _answered(self, method: str, path: str, **fields: object) -> httpx.Response:
        """Return the first answer that is not about Redis; it must be a good one."""
        while True:
            answer = await self._api.request(method, path, **fields)  # type: ignore[arg-type]
            if answer.status_code not in REDIS_IS_AWAY:
                assert answer.is_success or method == "DELETE", answer.text
                return answer
            await asyncio.sleep(REPEAT_S)


@asynccontextmanager
async def stalled_uploads(redis_url: str, queue: Queue, folder: Path) -> AsyncIterator[None]:
    """Stall one tenant's uploads during the block; at its end, another tenant must have got through."""
    settings = gateway_settings(redis_url, queue, folder)
    async with running_gateway(settings) as gateway:
        names = ("staller", "neighbour")
        uploads = Uploads(gateway, *[await gateway.add_tenant(name) for name in names])
        try:
            await uploads.stall()
            async with asyncio.TaskGroup() as group:
                group.create_task(uploads.get_through())
                yield
        finally:
            await uploads.close()
    for name in names:
        await Tenants(queue.redis).delete(name)
