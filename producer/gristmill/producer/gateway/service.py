"""What the routes share, opened once a process and closed at its end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request

from gristmill.producer.batches.service import Batches
from gristmill.producer.batches.storage import Storage
from gristmill.producer.client import Client
from gristmill.producer.gateway.bodies import Bodies
from gristmill.producer.gateway.doorkeeper import Doorkeeper
from gristmill.producer.gateway.limits import TenantLimits
from gristmill.producer.gateway.media import MediaGuard
from gristmill.producer.gateway.settings import GatewaySettings
from gristmill.producer.tenants import Tenants
from gristmill.shared.connection import connect
from gristmill.shared.queue import Queue


@dataclass(frozen=True)
class Gateway:
    """One gateway.

    Attributes:
        settings: Of this process.
        queue: Where requests go.
        client: Submits them and waits for their results.
        batches: Files and batches.
        doorkeeper: Knows who calls.
        limits: What bounds them.
        media: Looks at the URLs in requests.
        bodies: What is being read.
        stopping: Set when the process is told to stop: calls that wait for a result wait no longer.
    """

    settings: GatewaySettings
    queue: Queue
    client: Client
    batches: Batches
    doorkeeper: Doorkeeper
    limits: TenantLimits
    media: MediaGuard
    bodies: Bodies = field(default_factory=Bodies)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)


@asynccontextmanager
async def open_gateway(settings: GatewaySettings) -> AsyncIterator[Gateway]:
    """Open a gateway; connects at the first use, so Redis need not be there yet.

    Raises:
        SettingsError: A URL cannot be used.
    """
    redis = connect(settings.redis_url.get_secret_value(), settings.socket_timeout_s)
    queue = Queue(redis, settings.queue, settings.limits)
    media = MediaGuard(settings.allowed_media_domains)
    async with Client(
        queue, max_request_bytes=settings.max_request_bytes, check_models=settings.check_models
    ) as client:
        yield Gateway(
            settings=settings,
            queue=queue,
            client=client,
            batches=Batches(queue, Storage(settings.storage_url), settings),
            doorkeeper=Doorkeeper(Tenants(queue), is_open=settings.is_open),
            limits=TenantLimits(queue),
            media=media,
        )
    media.close()


async def gateway_of(request: Request) -> Gateway:
    """Return the gateway of a call; a coroutine, since FastAPI runs plain functions in a thread."""
    gateway: Gateway = request.app.state.gateway
    return gateway


GatewayOf = Annotated[Gateway, Depends(gateway_of)]
