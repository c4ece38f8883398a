"""Answer a live request as a stream of server-sent events.

The events come from the worker by way of Redis (`stream_reader.py`). If they end before the answer does, the rest comes
from the result. The answer to the call begins with the first event, so what fails before has its HTTP status.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing
from http import HTTPStatus
from typing import Any

import orjson
import structlog
from fastapi.responses import StreamingResponse
from redis.exceptions import RedisError
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from gristmill.producer.gateway.failover_retry import retry_redis
from gristmill.producer.gateway.growing_text import Diverged
from gristmill.producer.gateway.http_errors import ApiError, api_error
from gristmill.producer.gateway.model_map import ServedQueue
from gristmill.producer.gateway.sent_events import SentEvents
from gristmill.producer.gateway.sent_text import SentText
from gristmill.producer.gateway.stream_reader import Following
from gristmill.shared.errors import GristmillError
from gristmill.shared.event_streams import START, Entry, stream_options
from gristmill.shared.request import RESPONSES, Request
from gristmill.shared.results import Result
from gristmill.shared.tasks import end

log = structlog.get_logger()

KEEP_ALIVE_S = 15.0
"""Seconds without an event after which the client gets a comment, so that no proxy closes the connection."""

KEEP_ALIVE = b": waiting\n\n"

DONE = b"data: [DONE]\n\n"

_FAILED = {
    "stream_too_long": "its events exceed GRISTMILL_MAX_STREAM_BYTES",
    "stream_too_slow": "Redis took its events too slowly",
}
"""How a stream may end before its answer, and why; the request then goes on to its result."""


class Unstreamed(Exception):
    """The request failed before its first event; the caller gets the result as it is."""

    def __init__(self, result: Result) -> None:
        super().__init__(result.id)
        self.result = result


class LiveStream:
    """One call that waits for events.

    Args:
        served: The queue that has the request.
        request: The queued request.
        key: The Idempotency-Key of the call; without one, hanging up cancels the request.
        last_event_id: Event after which to go on; "" for the start.
        limit_s: Longest wait for the answer, in seconds.
        leaving: Ends when the client has closed the connection.
        stopping: Ends shortly before the gateway stops.
    """

    def __init__(
        self,
        served: ServedQueue,
        request: Request,
        key: str | None,
        last_event_id: str,
        *,
        limit_s: float,
        leaving: Coroutine[Any, Any, None],
        stopping: Coroutine[Any, Any, None],
    ) -> None:
        self._served = served
        self._id = request.id
        self._key = key
        self._skip_until = last_event_id
        self._shows_usage = bool((stream_options(request.facts) or {}).get("include_usage"))
        self._is_of_responses = request.endpoint == RESPONSES
        self._sent = SentEvents() if self._is_of_responses else SentText()
        self._position = START
        self._is_over = False
        self._error: Exception | None = None
        self._wake = asyncio.Event()
        self._waiting = asyncio.ensure_future(served.client.wait(request.id))
        self._leaving = asyncio.ensure_future(leaving)
        self._stopping = asyncio.ensure_future(stopping)
        self._limit_s = limit_s
        self._deadline_s = time.monotonic() + self._limit_s

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield the events, each with its id, and comments while nothing comes.

        Raises:
            Unstreamed: The request failed before its first event.
            ApiError: The call ends before the first event. Later, the error is an event.
            ClientDisconnect: The client has gone.
        """
        has_begun = False
        try:
            async with aclosing(self._events()) as events:
                async for data in events:
                    has_begun = True
                    yield data
        except (Unstreamed, ApiError, GristmillError, RedisError, OSError) as error:
            if not has_begun:
                raise
            yield self._error_event(error)

    async def _events(self) -> AsyncGenerator[bytes, None]:
        tasks = (self._waiting, self._leaving, self._stopping)
        for task in tasks:
            task.add_done_callback(lambda _: self._wake.set())
        following = self._served.streams.follow(self._id, self._wake.set)
        try:
            while not self._is_over:
                if data := await self._next(following):
                    yield data
                if self._error:
                    raise self._error
            if not self._is_of_responses:
                yield DONE
        finally:
            self._served.streams.leave(following)
            await end(*tasks)

    async def _next(self, following: Following) -> bytes:
        """Return what the client gets next; it may be empty.

        What ends the stream with an error goes into `_error`, so that the client gets first what came before.
        """
        if not following.is_hungry:
            return await self._passed(following.take())
        if self._waiting.done():
            return await self._rest(self._waiting.result())
        await self._check_call()
        if following.error:
            raise following.error
        return b"" if await self._woken() else KEEP_ALIVE

    async def _woken(self) -> bool:
        """Wait for something to do; return False after `KEEP_ALIVE_S` without it."""
        rest_s = max(0.0, self._deadline_s - time.monotonic())
        try:
            async with asyncio.timeout(min(KEEP_ALIVE_S, rest_s)):
                await self._wake.wait()
        except TimeoutError:
            return time.monotonic() >= self._deadline_s  # then `_check_call` ends the call
        self._wake.clear()
        return True

    async def _check_call(self) -> None:
        """Check that the call goes on.

        Raises:
            ClientDisconnect: The client has gone; without a key, its request is cancelled.
            ApiError: The gateway stops, or the time is over.
        """
        if self._leaving.done():
            if self._key is None:
                await retry_redis(self._served.queue.cancel, [self._id])
            raise ClientDisconnect
        if self._stopping.done():
            raise self._ended(
                "gateway_stopping", "the gateway stops", HTTPStatus.SERVICE_UNAVAILABLE
            )
        if time.monotonic() >= self._deadline_s:
            why = f"it took longer than {self._limit_s:g} s (GRISTMILL_GATEWAY_LIVE_TIMEOUT_S){await self._served.lack_of_workers()}"
            raise self._ended("timeout", why, HTTPStatus.GATEWAY_TIMEOUT)

    async def _passed(self, entries: Sequence[Entry]) -> bytes:
        """Return what the client gets of entries; other calls have their turns between them."""
        passed: list[bytes] = []
        try:
            for entry in entries:
                passed.extend(self._events_in(entry))
                self._take_ending(entry)
                await asyncio.sleep(0)
        except Exception as error:  # noqa: BLE001  # whatever the server sent, the client gets an end
            self._error = self._interrupted(error)
        return b"".join(passed)

    def _events_in(self, entry: Entry) -> Iterator[bytes]:
        self._position = entry.position
        for number, event in enumerate(entry.events.split(b"\n\n")[:-1], 1):
            passed = self._sent.pass_on(entry.delivery, event)
            yield self._unskipped(f"{entry.position}.{number}", passed)

    def _unskipped(self, event_id: str, event: bytes | None) -> bytes:
        """Return an event with its id; nothing if there is none, or if the client has it from an earlier call."""
        if self._skip_until:
            self._skip_until = "" if event_id == self._skip_until else self._skip_until
            return b""
        return b"" if event is None else b"id: %s\n%s\n\n" % (event_id.encode(), event)

    def _take_ending(self, entry: Entry) -> None:
        if entry.ending == "succeeded":
            if self._sent.is_behind:
                raise Diverged
            self._is_over = not self._skip_until
        elif why := _FAILED.get(entry.ending):
            self._error = self._ended(entry.ending, why)

    async def _rest(self, result: Result) -> bytes:
        """Return the rest: what the stream still has, then what only the result has."""
        entries = await retry_redis(self._served.queue.events.rest, self._id, self._position)
        data = await self._passed(entries)
        if self._is_over or self._error:
            return data
        self._is_over = True
        if not result.is_success:
            self._error = Unstreamed(result)
            return data
        data += self._rest_of(result)
        if self._skip_until and not self._error:
            self._error = self._expired()
        return data

    def _rest_of(self, result: Result) -> bytes:
        """Return the events that only the result has; the same again if the client comes back."""
        try:
            rest = [*self._sent.rest_of(result.body, shows_usage=self._shows_usage)]
        except Exception as error:  # noqa: BLE001  # as in `_passed`
            self._error = self._interrupted(error)
            return b""
        return b"".join(self._unskipped(f"result.{n}", event) for n, event in enumerate(rest, 1))

    def _expired(self) -> ApiError:
        message = (
            f"the stream of request {self._id} has no event {self._skip_until!r}, or has expired"
            " (GRISTMILL_STREAM_TTL_S); repeat the call without Last-Event-ID, and it answers from the start"
        )
        return ApiError(404, message, param="Last-Event-ID", code="stream_expired")

    def _interrupted(self, error: Exception) -> ApiError:
        if isinstance(error, Diverged):
            why = "it was computed again and differs from what was sent"
        else:
            log.error("stream.unreadable", id=self._id, error=repr(error)[:500])
            why = "the server sent what the gateway cannot read as a part of an answer"
        return self._ended("stream_interrupted", why)

    def _ended(self, code: str, why: str, status: int = 500) -> ApiError:
        return ApiError(
            int(status),
            f"the stream of request {self._id} ended early: {why}; the whole answer: GET /v1/requests/{self._id}?wait=60",
            code=code,
        )

    def _error_event(self, error: Exception) -> bytes:
        if isinstance(error, Unstreamed):
            body = error_of(error.result)
        else:
            body = orjson.loads(bytes(api_error(error).response().body))["error"]
        body["request_id"] = self._id
        if self._is_of_responses:
            return b"event: error\ndata: %s\n\n" % orjson.dumps({"type": "error", **body, "error": body})  # fmt: skip
        return b"data: %s\n\n" % orjson.dumps({"error": body})


def error_of(result: Result) -> "dict[str, object]":
    """Return the error of a failed request in OpenAI's form: the engine's, or the queue's."""
    if isinstance(result.body, dict) and isinstance(result.body.get("error"), dict):
        return dict(result.body["error"])
    error = result.error or {}
    code, message = error.get("code"), error.get("message", "")
    return {"message": f"request {result.id}: {message}", "type": "server_error", "param": None, "code": code}  # fmt: skip


class EventAnswer(StreamingResponse):
    """An answer of server-sent events. Starlette's own one would read from the connection, too, as `LiveStream` does."""

    def __init__(
        self, first: bytes, events: AsyncGenerator[bytes, None], headers: Mapping[str, str]
    ) -> None:
        own = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(events, 200, {**own, **headers}, "text/event-stream")
        self._first = first
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # ASGI's
        """Send the answer."""
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        async with aclosing(self._events) as events:
            await send({"type": "http.response.body", "body": self._first, "more_body": True})
            async for data in events:
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
