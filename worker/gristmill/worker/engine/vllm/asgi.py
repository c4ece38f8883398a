"""Call vLLM's whole HTTP application without a socket.

The application answers every request that the hot path (`serving.py`) does not take. Each costs
2.6 ms of Python. This module solves three problems of such calls:

- A cancelled ASGI call leaks its request, so `Application.post` sends a disconnect message instead.
- vLLM's handler for a dead engine stops `app.state.server`, so a stand-in takes the server's place.
- After an unforeseen error Starlette sends its 500 and also raises, so that a server can log the
  error. `Application.post` logs it instead.
"""

import asyncio
from collections.abc import MutableMapping, Sequence
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import structlog

from gristmill.worker.engine.bodies import response_of, with_priority
from gristmill.worker.engine.interface import Response
from gristmill.worker.engine.refusals import error_response, stream_refusal
from gristmill.worker.engine.streamed_answer import StreamedAnswer

log = structlog.get_logger(__name__)

Message = MutableMapping[str, Any]


class Application:
    """Posts requests to vLLM's FastAPI application."""

    def __init__(self, app: Any, api_keys: Sequence[str] = ()) -> None:
        """Keep the application.

        Args:
            app: The application that `build_app` returned, with its state initialised.
            api_keys: API keys that the application accepts, from `--api-key` or VLLM_API_KEY.
        """
        self._app = app
        self._headers = [(b"content-type", b"application/json")]
        if api_keys:
            self._headers.append((b"authorization", f"Bearer {api_keys[0]}".encode()))
        app.state.server = SimpleNamespace(should_exit=False)

    async def post(
        self, endpoint: str, body: bytes, priority: int, streamed: StreamedAnswer | None
    ) -> Response:
        """Answer a request; cancelling the caller aborts the request in the engine.

        Args:
            endpoint: A path of the application.
            body: The request's body, of any bytes.
            priority: vLLM's priority; it replaces the body's own value.
            streamed: Takes the events of the answer; None for a request that may not stream.
        """
        exchange = _Exchange(with_priority(body, priority), streamed)
        call = asyncio.create_task(
            self._app(self._scope(endpoint), exchange.receive, exchange.send)
        )
        try:
            await asyncio.shield(call)
        except asyncio.CancelledError:
            exchange.disconnected.set()
            await asyncio.wait([call])
            raise
        except Exception as error:
            log.warning("application.raised", endpoint=endpoint, exc_info=error)
        return exchange.response()

    def _scope(self, path: str) -> Message:
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": self._headers,
            "client": ("127.0.0.1", 0),
            "server": ("in-process", 80),
        }


class _Exchange:
    """One request and its response, as ASGI messages."""

    def __init__(self, body: bytes, streamed: StreamedAnswer | None) -> None:
        self.disconnected = asyncio.Event()
        self._request: bytes | None = body
        self._status: int | None = None
        self._streamed = streamed
        self._is_stream = False
        self._body = bytearray()

    async def receive(self) -> Message:
        if self._request is not None:
            body, self._request = self._request, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._is_stream = (
                dict(message["headers"]).get(b"content-type", b"").startswith(b"text/event-stream")
            )
        elif message["type"] == "http.response.body":
            data = message.get("body", b"")
            if self._is_stream and self._streamed:
                self._streamed.feed(data)
            else:
                self._body.extend(data)

    def response(self) -> Response:
        if self._status is None:
            message = "the application ended without an answer; the worker's log says why"
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            return error_response(status, message, "InternalServerError")
        if self._is_stream:
            return self._streamed.response() if self._streamed else stream_refusal()
        return response_of(self._status, bytes(self._body))
