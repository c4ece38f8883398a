"""Call vLLM's serving objects directly: the hot path, with 0.5 ms of Python for a request.

It takes only chat, completions and embeddings, and only bodies that vLLM's own request classes
accept. All other requests go through the ASGI application (`asgi.py`). The application's error
handlers then write the same body as `vllm serve`.

This module never builds SamplingParams itself, because a float in the place of an int would hang
the engine. vLLM's request classes convert or refuse such a value.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeVar

from gristmill.shared.errors import EngineDied
from gristmill.worker.engine.bodies import described, response_of
from gristmill.worker.engine.interface import Response
from gristmill.worker.engine.refusals import stream_refusal
from gristmill.worker.engine.streamed_answer import StreamedAnswer
from gristmill.worker.engine.vllm import compat

T = TypeVar("T")


class ServingObjects:
    """The serving objects that `init_app_state` built, by endpoint."""

    def __init__(self, state: Any) -> None:
        """Collect the serving objects.

        Args:
            state: The application's state, after `init_app_state`.
        """
        from fastapi.responses import JSONResponse
        from pydantic import TypeAdapter
        from vllm.v1.engine.exceptions import EngineDeadError

        self._handlers = compat.handlers(state)
        types = compat.request_types()
        self._parsers: dict[str, Callable[[Any], Any]] = {
            endpoint: TypeAdapter(types[endpoint]).validate_python for endpoint in self._handlers
        }
        self._json_response, self._engine_dead = JSONResponse, EngineDeadError
        self._error_type, self._error_of = compat.error_type(), compat.error_factory()

    async def post(
        self, endpoint: str, body: bytes, priority: int, streamed: StreamedAnswer | None
    ) -> Response | None:
        """Answer a request if a serving object takes it.

        Args:
            endpoint: The path, which may be any path.
            body: The request's body, of any bytes.
            priority: vLLM's priority; it replaces the body's own value.
            streamed: Takes the events of the answer; None for a request that may not stream.

        Returns:
            The response, or None if the request has to go through the application.

        Raises:
            EngineDied: The engine died while the request ran.
        """
        if endpoint not in self._handlers:
            return None
        request = self._parsed(endpoint, body)
        if request is None:
            return None
        if streamed is None and getattr(request, "stream", False):
            return stream_refusal()
        request.priority = priority
        answer = await self._answered(endpoint, request)
        if streamed is not None and isinstance(answer, AsyncGenerator):
            return await _streamed(answer, streamed)
        return self._rendered(answer)

    def _parsed(self, endpoint: str, body: bytes) -> Any:
        """Return the parsed request, or None if vLLM refuses the body.

        It parses as FastAPI does: with the standard library's JSON, then pydantic in Python mode.
        """
        try:
            return self._parsers[endpoint](json.loads(body))
        except Exception:  # noqa: BLE001  (the application parses it again and words the error)
            return None

    async def _answered(self, endpoint: str, request: Any) -> Any:
        try:
            return await _cancellable(self._handlers[endpoint](request))
        except self._engine_dead as error:
            raise EngineDied(f"the engine died while a request ran: {error}") from error
        except Exception as error:  # noqa: BLE001  (the application's handlers do the same)
            return self._error_of(error)

    def _rendered(self, answer: Any) -> Response:
        if isinstance(answer, self._error_type):
            return self._to_json(answer, answer.error.code)
        if hasattr(answer, "model_dump"):
            return self._to_json(answer, 200)
        return response_of(answer.status_code, bytes(answer.body))

    def _to_json(self, answer: Any, status: int) -> Response:
        fields = answer.model_dump()
        try:
            body = bytes(self._json_response(fields).body)
        except ValueError as error:  # NaN among the logprobs; the application answers the same
            return self._rendered(self._error_of(error))
        return described(status, body, fields)


async def _streamed(events: AsyncGenerator[str, None], streamed: StreamedAnswer) -> Response:
    """Take all events of an answer; cancelling the task aborts the request in the engine."""
    async with contextlib.aclosing(events):
        async for event in events:
            streamed.feed(event.encode())
    return streamed.response()


async def _cancellable(call: Awaitable[T]) -> T:
    """Await a handler, and raise CancelledError if the task was cancelled during the call.

    vLLM's handlers turn a cancellation into an answer. They abort the request in the engine and
    then return "Client disconnected" with status 400 (`chat_completion_full_generator`).
    """
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    answer = await call
    if task and task.cancelling() > before:
        raise asyncio.CancelledError
    return answer
