"""A gateway process from start to exit: the socket, signals, the log."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from types import FrameType

import structlog
import uvicorn
import uvloop
from fastapi import FastAPI

from gristmill.producer.batches.storage import Storage
from gristmill.producer.gateway.app import create_app
from gristmill.producer.gateway.service import open_gateway
from gristmill.producer.gateway.settings import GatewaySettings
from gristmill.shared.connection import notice_waits
from gristmill.shared.errors import SettingsError
from gristmill.shared.log import configure_logging
from gristmill.shared.redis_url import redacted

log = structlog.get_logger()

REDIS_NOTICE_S = 10.0
BACKLOG = 2048
MAX_HEAD_BYTES = 64 * 1024
"""Bytes of the head of a call; h11 closes the connection of a longer one."""


def run_gateway(settings: GatewaySettings) -> int:
    """Serve until told to stop; returns 0.

    Raises:
        SettingsError: The address is taken, or the storage cannot be used.
    """
    configure_logging(settings.log_level)
    Storage(settings.storage_url).check()
    url = redacted(settings.redis_url.get_secret_value())
    notice_waits(partial(_tell_wait, url), REDIS_NOTICE_S)
    listener = listen(settings.gateway_host, settings.gateway_port)
    with listener, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(settings, listener))
    return 0


async def serve(settings: GatewaySettings, listener: socket.socket) -> None:
    """Answer on a socket until SIGTERM or SIGINT.

    Then no new call is taken, calls that wait for a result end with what is known, and the others have
    `drain_timeout_s` to finish.

    Args:
        settings: Of this process.
        listener: Bound and listening.
    """
    host, port = listener.getsockname()[:2]
    async with open_gateway(settings) as gateway:
        app = create_app(gateway)
        server = Server(server_config(app, settings), on_exit=gateway.stopping.set)
        log.info(
            "gateway.started", version=version("gristmill"), host=host, port=port, queue=settings.queue,
            is_open=settings.is_open,
        )  # fmt: skip
        await server.serve(sockets=[listener])
    log.info("gateway.stopped")


def server_config(app: FastAPI, settings: GatewaySettings) -> uvicorn.Config:
    """Return how uvicorn serves an application: quietly, for the log is ours."""
    return uvicorn.Config(
        app,
        http="h11",  # httptools bounds no header
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=int(settings.drain_timeout_s),
    )


class Server(uvicorn.Server):
    """uvicorn's server, which tells when it is told to stop."""

    def __init__(self, config: uvicorn.Config, on_exit: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_exit = on_exit

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take the signals while serving; uvicorn's own way raises them again at the end, which kills us."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin the end; a second signal hurries."""
        self._on_exit()
        super().handle_exit(sig, frame)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        SettingsError: The address is taken, or not one of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        message = f"the gateway cannot listen on {host}:{port} ({error}); set GRISTMILL_GATEWAY_HOST or GRISTMILL_GATEWAY_PORT"
        raise SettingsError(message) from error


def _tell_wait(url: str, error: Exception) -> None:
    remedy = "check that it runs, that this machine may reach it, and REDIS_URL"
    log.warning("redis.waited_for", url=url, error=str(error), remedy=remedy)
