"""A gateway process from start to exit: application with routers, probes, socket, signals."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from importlib.metadata import version
from types import FrameType

import structlog
import uvicorn
import uvloop
from fastapi import APIRouter, FastAPI
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, Counter
from redis.exceptions import RedisError

from gristmill.producer.batches.storage import Storage
from gristmill.producer.gateway import (
    http_errors,
    routes_batches,
    routes_files,
    routes_live,
    routes_models,
    routes_requests,
    routes_tenant,
    routes_usage,
    ui,
)
from gristmill.producer.gateway.context import CurrentGateway, Gateway, open_gateway
from gristmill.producer.gateway.middleware import CallMiddleware
from gristmill.producer.gateway.settings import GatewaySettings
from gristmill.producer.gateway.ui.live_pages import LivePages
from gristmill.shared.errors import SettingsError, WrongFormat
from gristmill.shared.log import configure_logging
from gristmill.shared.redis_eviction import warn_of_eviction
from gristmill.shared.redis_retry import RedisNotice, announce_redis_waits, is_transient
from gristmill.shared.redis_trouble import error_in_words, remedy, trouble_in_short
from gristmill.shared.tracing import start_tracing

log = structlog.get_logger()

BACKLOG = 2048
KEEP_ALIVE_S = 75
"""Seconds for which an idle connection stays open: longer than clients (httpx: 5 s) and most proxies (60 s) keep theirs.

Otherwise a call may go into a connection that the gateway is just closing.
"""

MAX_HEAD_BYTES = 64 * 1024
"""Most bytes of a call's request line and headers; h11 closes the connection of a longer one."""

READY_TIMEOUT_S = 2.0

_lost_spans = Counter("gristmill_gateway_lost_spans", "Spans of traces that no OTLP endpoint got")

probes = APIRouter(tags=["probes"], default_response_class=PlainTextResponse)
"""The routes for Kubernetes and Prometheus; they need no key."""


def create_app(gateway: Gateway) -> FastAPI:
    """Return the ASGI application of a gateway: its routers, errors and middleware.

    It does not close the gateway.
    """
    app = FastAPI(
        title="Gristmill",
        version=version("gristmill"),
        description="OpenAI's API, live and in batches, over a queue of GPU workers.",
        redirect_slashes=False,
    )
    app.state.gateway = gateway
    app.state.live_pages = LivePages(gateway.stopping)
    http_errors.install(app)
    for module in (
        routes_live,
        routes_files,
        routes_batches,
        routes_requests,
        routes_models,
        routes_tenant,
        routes_usage,
    ):
        app.include_router(module.router, responses=http_errors.RESPONSES)
    app.include_router(routes_models.unsupported_router)
    app.include_router(probes)
    app.include_router(ui.router())
    app.add_middleware(CallMiddleware)
    return app


@probes.get("/healthz")
async def healthz() -> str:
    """Answer while the event loop runs."""
    return "ok\n"


@probes.get("/readyz")
async def readyz(gateway: CurrentGateway) -> Response:
    """Answer 200 while Redis answers, the queues have the right format and the gateway runs on; otherwise 503."""
    if gateway.stopping.is_set():
        return PlainTextResponse("stopping\n", 503)
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            await gateway.check_format_now()
    except WrongFormat as error:
        return PlainTextResponse(f"{error}\n", 503)
    except (RedisError, OSError) as error:
        return PlainTextResponse(f"Redis {trouble_in_short(error)}; {remedy(error)}\n", 503)
    return PlainTextResponse("ok\n")


@probes.get("/metrics")
async def metrics(gateway: CurrentGateway) -> Response:
    """Return the metrics of the gateway and of its queues."""
    home = gateway.batches.store
    page = await gateway.metrics.page([home.of_queue(each.name) for each in gateway.models.queues])
    return Response(page, media_type=CONTENT_TYPE_LATEST)


def run_gateway(settings: GatewaySettings) -> int:
    """Serve until a signal stops the process; returns 0.

    Raises:
        SettingsError: The address is taken, or the storage cannot be used.
        GristmillError: Redis refuses the login, a command or the URL's database.
    """
    configure_logging(settings.log_level)
    Storage(settings.storage_url).check()
    announce_redis_waits(settings.redis_url.get_secret_value())
    listener = listen(settings.gateway_host, settings.gateway_port)
    tracing = start_tracing("gristmill-gateway", _lost_spans.inc)
    try:
        with listener, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings, listener))
    finally:
        if tracing:
            tracing.stop()
    return 0


async def serve(settings: GatewaySettings, listener: socket.socket) -> None:
    """Answer calls on a socket until SIGTERM or SIGINT.

    After the signal the gateway takes no new call. Calls that wait for a result return the
    request's status. All others have `drain_timeout_s` to finish.

    Args:
        settings: The gateway's settings.
        listener: A listening socket.
    """
    host, port = listener.getsockname()[:2]
    async with open_gateway(settings) as gateway:
        await greet_redis(gateway)
        app = create_app(gateway)
        server = GatewayServer(server_config(app, settings), on_exit=gateway.stopping.set)
        log.info(
            "gateway.started", version=version("gristmill"), host=host, port=port, queues=settings.queues,
            open_without_tenants=settings.is_open,
        )  # fmt: skip
        await server.serve(sockets=[listener])
    log.info("gateway.stopped")


async def greet_redis(gateway: Gateway) -> None:
    """Ask Redis once. A gateway may start before Redis, but not with a login or a right that Redis refuses.

    Raises:
        GristmillError: Redis refuses the call, and waiting does not help.
    """
    url = gateway.settings.redis_url.get_secret_value()
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            for each in gateway.models.queues:
                await each.queue.stats()
            await warn_of_eviction(gateway.queue.redis, url)
    except WrongFormat as error:
        log.error("queue.unreadable", error=str(error))  # noqa: TRY400  # readiness tells it too
    except (RedisError, OSError) as error:
        if not is_transient(error):
            raise error_in_words(error, url, "REDIS_URL (or --redis-url)") from None
        RedisNotice(url)(error)


def server_config(app: FastAPI, settings: GatewaySettings) -> uvicorn.Config:
    """Return uvicorn's configuration for an application.

    Its own log is off; the middleware logs each call.
    """
    return uvicorn.Config(
        app,
        http="h11",  # httptools does not limit headers
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=int(settings.drain_timeout_s),
    )


class GatewayServer(uvicorn.Server):
    """uvicorn's server with a callback at the first signal.

    Args:
        config: uvicorn's configuration.
        on_exit: Called when a signal begins the end of the server.
    """

    def __init__(self, config: uvicorn.Config, on_exit: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_exit = on_exit

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle the signals while serving.

        uvicorn's own method raises them again at the end, which kills the process.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop the server; a second signal cuts off open calls."""
        self._on_exit()
        super().handle_exit(sig, frame)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        SettingsError: The address is taken, or this machine does not have it.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        message = f"the gateway cannot listen on {host}:{port} ({error}); set GRISTMILL_GATEWAY_HOST or GRISTMILL_GATEWAY_PORT"
        raise SettingsError(message) from error
