"""The hot path: vLLM's serving objects called directly, 0.5 ms of Python for a request.

Only for chat, completions and embeddings, and only for bodies that vLLM's own request classes
accept. Whatever they refuse goes through the ASGI application instead (`asgi.py`), whose error
handlers then write the very body that `vllm serve` would.

SamplingParams are never built here: one float where an int belongs would hang the engine for
ever, and the request classes convert or refuse it.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from gristmill.shared.errors import EngineDied
from gristmill.worker.engine.bodies import described, response_of
from gristmill.worker.engine.interface import Response
from gristmill.worker.engine.refusals import stream_refusal
from gristmill.worker.engine.vllm import compat

T = TypeVar("T")


class ServingObjects:
    """What `init_app_state` built, by endpoint."""

    def __init__(self, state: Any) -> None:
        """Collect them.

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

    async def post(self, endpoint: str, body: bytes, priority: int) -> Response | None:
        """Answer a request, if this is the way for it.

        Args:
            endpoint: Any path.
            body: Any bytes.
            priority: vLLM's; 0 leaves the body's own.

        Returns:
            The response, or None when it has to go through the application.

        Raises:
            EngineDied: The engine died while it ran.
        """
        if endpoint not in self._handlers:
            return None
        request = self._parsed(endpoint, body)
        if request is None:
            return None
        if getattr(request, "stream", False):
            return stream_refusal()
        if priority:
            request.priority = priority
        return self._rendered(await self._answered(endpoint, request))

    def _parsed(self, endpoint: str, body: bytes) -> Any:
        """As FastAPI does it: the standard library's JSON, then pydantic in Python mode."""
        try:
            return self._parsers[endpoint](json.loads(body))
        except Exception:  # noqa: BLE001  (any refusal: the application repeats and words it)
            return None

    async def _answered(self, endpoint: str, request: Any) -> Any:
        try:
            return await _cancellable(self._handlers[endpoint](request))
        except self._engine_dead as error:
            raise EngineDied(f"the engine died while a request ran: {error}") from error
        except Exception as error:  # noqa: BLE001  (as the handlers of the application do)
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
        except ValueError as error:  # NaN among the logprobs; the application answers likewise
            return self._rendered(self._error_of(error))
        return described(status, body, fields)


async def _cancellable(call: Awaitable[T]) -> T:
    """Await a handler so that a cancellation gets through: vLLM's turn it into an answer.

    "Client disconnected", with status 400 (`chat_completion_full_generator`), after the request
    was aborted in the engine.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    answer = await call
    if task and task.cancelling() > before:
        raise asyncio.CancelledError
    return answer
