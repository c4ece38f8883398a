"""Serve probes over HTTP from a separate thread, because the main thread of the process is busy."""

import threading
from collections.abc import Callable, Iterable, Mapping
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

StartResponse = Callable[[str, list[tuple[str, str]]], Any]
Application = Callable[[dict[str, Any], StartResponse], Iterable[bytes]]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _SilentHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # the base class's name
        """Log nothing: probes come every few seconds."""


class ProbeServer:
    """Serves probes until closed.

    Args:
        host: Address to listen on.
        port: Port to listen on; 0 picks a free port, and the attribute `port` says which.
        probes: Path -> function that returns why the probe fails now, or None.
        pages: Path -> a WSGI application.

    Raises:
        OSError: Another process uses the port.
    """

    def __init__(
        self,
        host: str,
        port: int,
        probes: Mapping[str, Callable[[], str | None]],
        pages: Mapping[str, Application] | None = None,
    ) -> None:
        self._probes = probes
        self._pages = pages or {}
        self._server = make_server(host, port, self._answer, _Server, _SilentHandler)
        self.port: int = self._server.server_port
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="gristmill-health", daemon=True
        )

    def start(self) -> None:
        """Start the thread that answers."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering and free the port."""
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path in self._pages:
            return self._pages[path](environ, start_response)
        if path in self._probes:
            reason = self._probes[path]()
            status = "503 Service Unavailable" if reason else "200 OK"
            return _text(status, reason or "ok", start_response)
        paths = ", ".join([*self._probes, *self._pages])
        return _text("404 Not Found", f"nothing here; there is {paths}", start_response)


def _text(status: str, text: str, start_response: StartResponse) -> Iterable[bytes]:
    start_response(status, [("Content-Type", "text/plain")])
    return [text.encode() + b"\n"]
