"""A gateway for the tests: the true application behind a true server, in this process, and its callers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from openai import AsyncOpenAI

from gristmill.producer.gateway.context import Gateway, open_gateway
from gristmill.producer.gateway.server import GatewayServer, create_app, listen, server_config
from gristmill.producer.gateway.settings import GatewaySettings
from gristmill.producer.tenants import Tenant, Tenants
from gristmill.shared.queue import Queue


@dataclass
class RunningGateway:
    """A gateway that answers.

    Attributes:
        url: Its root.
        gateway: The objects that its routes share.
        server: The HTTP server.
    """

    url: str
    gateway: Gateway
    server: GatewayServer

    async def add_tenant(self, name: str, **fields: Any) -> str:
        """Add a tenant; returns its key."""
        return await Tenants(self.gateway.queue.redis).create(Tenant(name=name, **fields))

    def caller(self, key: str = "", **headers: str) -> httpx.AsyncClient:
        """Return an HTTP client that comes with a key."""
        if key:
            headers["Authorization"] = f"Bearer {key}"
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=30)

    def openai(self, key: str = "any") -> AsyncOpenAI:
        """Return OpenAI's own client."""
        return AsyncOpenAI(api_key=key, base_url=f"{self.url}/v1", max_retries=0)

    def stop(self) -> None:
        """Do what a signal does."""
        self.server.handle_exit(15, None)


def gateway_settings(redis_url: str, queue: Queue, folder: Path, **fields: Any) -> GatewaySettings:
    """Return the settings of a gateway on a test's queue; its files lie in a folder of their own."""
    values: dict[str, Any] = {
        "redis_url": redis_url,
        "queue": queue.keys.queue,
        "storage_url": str(folder),
        "drain_timeout_s": 5,
    }
    return GatewaySettings(**values | fields)


@asynccontextmanager
async def running_gateway(settings: GatewaySettings) -> AsyncIterator[RunningGateway]:
    """Run a gateway on a free port for the length of a block."""
    listener = listen("127.0.0.1", 0)
    async with open_gateway(settings) as gateway:
        app = create_app(gateway)
        server = GatewayServer(server_config(app, settings), on_exit=gateway.stopping.set)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:
            await asyncio.sleep(0.01)
        try:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            yield RunningGateway(url, gateway, server)
        finally:
            server.handle_exit(15, None)
            await serving


def problem(response: httpx.Response) -> dict[str, Any]:
    """Return the error of an answer, which has OpenAI's form."""
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error
