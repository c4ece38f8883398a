"""The context of every route: the gateway's shared objects, and the tenant of the call.

A route declares the arguments `gateway: CurrentGateway` and `tenant: CallingTenant`; FastAPI fills
them in.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from gristmill.producer.batches.batch_service import Batches
from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.batches.storage import Storage
from gristmill.producer.client import Client
from gristmill.producer.gateway.authentication import ANONYMOUS, Authenticator
from gristmill.producer.gateway.body_pool import BodyPools, Caller
from gristmill.producer.gateway.failover_retry import retry_redis
from gristmill.producer.gateway.http_errors import ApiError
from gristmill.producer.gateway.live_limit import LiveLimit
from gristmill.producer.gateway.media_guard import MediaGuard
from gristmill.producer.gateway.model_map import ModelMap, ServedQueue
from gristmill.producer.gateway.settings import GatewaySettings, is_loopback
from gristmill.producer.gateway.stream_reader import StreamReader
from gristmill.producer.gateway.tenant_limits import TenantLimiter
from gristmill.producer.noted_queues import note_queue
from gristmill.producer.queue_metrics import QueueMetrics
from gristmill.producer.tenant_move import move_tenants
from gristmill.producer.tenants import Tenant, Tenants
from gristmill.shared.connection import connect
from gristmill.shared.fleet_cache import FleetCache
from gristmill.shared.format_check import check_format
from gristmill.shared.operations import max_element_bytes
from gristmill.shared.queue import Queue

MAX_SUBMITTING = 64
"""Most submits of a process at a time. More would only wait for each other, and each takes a connection of Redis."""


@dataclass(frozen=True)
class Gateway:
    """The objects that all routes share. A process opens one and closes it at its end.

    Attributes:
        settings: The gateway's settings.
        queue: The first queue, which has files and batches.
        models: The queues that take the requests, by model and by id.
        batches: The files and batches of the first queue.
        authenticator: Finds the tenant of an API key.
        tenant_limits: The limits of each tenant.
        live_limit: The limit of live requests of each tenant.
        media: Checks the media URLs of requests.
        body_pools: The memory for the bodies that are being read.
        metrics: The series of the queues.
        parsing: Lets one large body at a time be parsed; its objects take more memory than its bytes.
        submitting: Lets some calls at a time submit, so that the time limit of a submit begins at its turn.
        stopping: Set when the process is stopping; calls then stop waiting for a result.
        right_format: Set when the queues were seen in the format that this version reads, their tenants included.
    """

    settings: GatewaySettings
    queue: Queue
    models: ModelMap
    batches: Batches
    authenticator: Authenticator
    tenant_limits: TenantLimiter
    live_limit: LiveLimit
    media: MediaGuard
    body_pools: BodyPools
    metrics: QueueMetrics
    parsing: asyncio.Lock = field(default_factory=asyncio.Lock)
    submitting: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_SUBMITTING))
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    right_format: asyncio.Event = field(default_factory=asyncio.Event)

    async def check_format(self) -> None:
        """Check and note the queues, and move the tenants of an earlier version, until all went well once.

        Raises:
            WrongFormat: Another version wrote a queue, or a tenant of it cannot move.
        """
        if not self.right_format.is_set():
            await retry_redis(self.check_format_now)
            self.right_format.set()

    async def check_format_now(self) -> None:
        """Do what `check_format` does, even if it went well before."""
        for each in self.models.queues:
            await check_format(each.queue.redis, each.queue.keys)
            await move_tenants(each.queue.redis, each.name)
            await note_queue(each.queue.redis, each.name)


@asynccontextmanager
async def open_gateway(settings: GatewaySettings) -> AsyncIterator[Gateway]:
    """Open a gateway. It connects at its first call, so Redis may start later.

    Raises:
        SettingsError: A URL cannot be used.
    """
    media = MediaGuard(settings.allowed_media_domains)
    async with AsyncExitStack() as clients:
        served = [await _served(settings, name, clients) for name in settings.queues]
        queue = served[0].queue
        yield Gateway(
            settings=settings,
            queue=queue,
            models=ModelMap(served, settings.gateway_models, check_models=settings.check_models),
            batches=Batches(
                BatchStore(queue, Storage(settings.storage_url), settings),
                settings.queues,
                settings.gateway_models,
            ),
            authenticator=Authenticator(Tenants(queue.redis), is_open=settings.is_open),
            tenant_limits=served[0].limits,
            live_limit=LiveLimit(queue.redis),
            media=media,
            body_pools=BodyPools(max_element_bytes(settings.max_request_bytes)),
            metrics=QueueMetrics(settings.queues),
        )
    media.close()


async def _served(settings: GatewaySettings, name: str, clients: AsyncExitStack) -> ServedQueue:
    """Return one queue with a connection and a client of its own, which the stack closes."""
    redis = connect(settings.redis_url.get_secret_value(), settings.socket_timeout_s)
    queue = Queue(redis, name, settings.limits)
    unchecked = settings.model_copy(update={"check_models": False})
    streams = StreamReader(queue)
    clients.push_async_callback(streams.aclose)
    return ServedQueue(
        queue=queue,
        client=await clients.enter_async_context(Client(unchecked, queue=queue)),
        limits=TenantLimiter(queue),
        streams=streams,
        fleet=FleetCache(queue),
    )


async def current_gateway(request: Request) -> Gateway:
    """Return the gateway of a call.

    It is a coroutine because FastAPI runs plain functions in a thread.
    """
    gateway: Gateway = request.app.state.gateway
    return gateway


CurrentGateway = Annotated[Gateway, Depends(current_gateway)]
"""The gateway, as an argument of a route."""

_bearer = HTTPBearer(auto_error=False, description="An API key of `gristmill tenant create`.")


async def calling_tenant(
    request: Request,
    gateway: CurrentGateway,
    credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> Tenant:
    """Return the tenant of a call, and count the call against its limit.

    Raises:
        ApiError: 401 for an unknown key; 403 for a page or a host of another site without a key; 429
            over the tenant's calls per minute.
        WrongFormat: Another version wrote the queue.
    """
    await gateway.check_format()
    tenant = await gateway.authenticator.tenant_of(credentials.credentials if credentials else "")
    if tenant is ANONYMOUS:
        _check_site(request, any_host=gateway.settings.gateway_allow_anonymous == "true")
    request.state.call.tenant = tenant.name
    await gateway.tenant_limits.count_call(tenant)
    return tenant


def _check_site(request: Request, *, any_host: bool) -> None:
    """Check that no browser calls for a page of another site. It can reach loopback, but it names the site.

    A site whose name leads to 127.0.0.1 (DNS rebinding) is its own origin there, so the host is checked too.

    Args:
        request: A call without a key.
        any_host: True to accept every `Host`.

    Raises:
        ApiError: 403: the page or the host is another site's.
    """
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != host:
        message = "a web page of another site needs an API key (gristmill tenant create NAME)"
        raise ApiError(403, message, code="cross_site")
    if not any_host and not is_loopback(_without_port(host)):
        message = (
            f"a call without an API key has the Host {host[:200]!r}; call localhost or 127.0.0.1, send an API key"
            " (gristmill tenant create NAME), or let the operator set GRISTMILL_GATEWAY_ALLOW_ANONYMOUS=true"
        )
        raise ApiError(403, message, code="cross_site")


def _without_port(host: str) -> str:
    """Return the lower-case name or address in a `Host` header; empty if there is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def caller_of(request: Request, tenant: Tenant) -> Caller:
    """Return who sends the body of a call."""
    address = request.client.host if request.client else ""
    return Caller(address if tenant is ANONYMOUS else tenant.name, address)


CallingTenant = Annotated[Tenant, Depends(calling_tenant)]
"""The tenant of the call, as an argument of a route. A route with this argument needs an API
key."""
