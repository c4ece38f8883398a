"""The probes: /healthz, /readyz and /metrics on a small HTTP server in a thread of its own.

/healthz fails when the loop or the engine makes no progress, and only then; /readyz also while
starting, draining, or while Redis is away. /metrics carries Gristmill's series and vLLM's own.
"""

import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import REGISTRY, make_wsgi_app

from gristmill.worker.progress import Progress

StartResponse = Callable[[str, list[tuple[str, str]]], Any]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _SilentHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # the base class's name
        """Probes every few seconds are no news."""


class HealthServer:
    """Serves the probes until closed.

    Args:
        progress: What they tell.
        host: Address to listen on.
        port: 0 takes a free one; `port` then says which.

    Raises:
        OSError: The port is taken.
    """

    def __init__(self, progress: Progress, host: str, port: int) -> None:
        self._progress = progress
        self._metrics = make_wsgi_app(REGISTRY)
        self._server = make_server(host, port, self._answer, _Server, _SilentHandler)
        self.port: int = self._server.server_port
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="gristmill-health", daemon=True
        )

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering and free the port."""
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            answer: Iterable[bytes] = self._metrics(environ, start_response)
            return answer
        if path == "/healthz":
            return _probe(self._progress.stalled_reason(), start_response)
        if path == "/readyz":
            return _probe(self._progress.unready_reason(), start_response)
        start_response("404 Not Found", [("Content-Type", "text/plain")])
        return [b"use /healthz, /readyz or /metrics\n"]


def _probe(reason: str | None, start_response: StartResponse) -> Iterable[bytes]:
    start_response(
        "503 Service Unavailable" if reason else "200 OK", [("Content-Type", "text/plain")]
    )
    return [(reason or "ok").encode() + b"\n"]
