"""Call an engine behind a URL: a vLLM server, or any server with an OpenAI-compatible API.

The module sends and returns bodies as bytes. It raises one of three errors for a server's failure:

- `EngineUnavailable`: the server does not answer or is overloaded; try again.
- `EngineDied`: the server went away while it held a request, which may be the cause.
- `EngineHungUp`: the server lives, but broke off this request alone; try again, and count the
  attempt.
"""

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import aiohttp

from gristmill.shared.errors import (
    EngineDied,
    EngineError,
    EngineHungUp,
    EngineUnavailable,
)
from gristmill.worker.engine.bodies import ABORTED, response_of, with_priority
from gristmill.worker.engine.interface import (
    EngineInfo,
    EngineStats,
    OnEvent,
    Response,
    RunLimits,
)
from gristmill.worker.engine.refusals import (
    error_response,
    refusal,
    stream_refusal,
    too_large,
    too_long,
)
from gristmill.worker.engine.remote_facts import ASSUMED_NUM_SEQS
from gristmill.worker.engine.remote_replies import (
    UNAVAILABLE,
    at_most,
    no_http_status,
    unavailable,
)
from gristmill.worker.engine.remote_server import PROBE_S, RemoteServer
from gristmill.worker.engine.streamed_answer import MAX_STATUS, StreamedAnswer

TOGETHER_S = 1.0
"""Seconds within which broken connections count as having one cause."""


class RemoteEngine:
    """An engine that runs in a server at a URL; see `Engine` for the contract."""

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        *,
        health_path: str = "/health",
        limits: RunLimits | None = None,
        max_num_seqs: int | None = None,
        start_timeout_s: float = 600.0,
    ) -> None:
        """Keep the address; send nothing before `start`.

        Args:
            url: Base URL, with or without `/v1`; it may have a path before that.
            api_key: API key, sent as a bearer token.
            health_path: Path below the base URL whose 2xx says that the server works; empty for
                `/v1/models`.
            limits: Limits of a request and its answer. `max_repeated_tokens` has no effect, because
                the server's tokens cannot be seen from here.
            max_num_seqs: Sequences that the server runs at the same time, which no server says; None assumes
                `ASSUMED_NUM_SEQS`, and `start` logs it.
            start_timeout_s: Seconds that `start` waits for the server to be healthy.
        """
        self._server = RemoteServer(url, api_key, health_path, has_size=max_num_seqs is not None)
        self._url = self._server.url
        self._max_num_seqs = max_num_seqs or ASSUMED_NUM_SEQS
        self._start_timeout_s = start_timeout_s
        self._limits = limits or RunLimits()
        self._broke_at = deque[float](maxlen=2)  # monotonic seconds of the last two breaks
        self._endpoints: tuple[str, ...] = ()
        self._is_vllm = False

    async def start(self) -> EngineInfo:
        """Wait until the server is healthy, then ask what it serves; see `Engine.start`.

        It posts no request, because a healthy server has warmed itself up. A fact that the server does
        not tell is logged once.

        Raises:
            SettingsError: The server refuses the API key.
            EngineDied: The server did not become healthy.
        """
        facts = await self._server.connect(self._start_timeout_s)
        self._endpoints, self._is_vllm = facts.endpoints, facts.is_vllm
        return EngineInfo(
            transport="remote",
            models=facts.models,
            endpoints=facts.endpoints,
            max_num_seqs=self._max_num_seqs,
            max_model_len=facts.max_model_len,
            vllm_version=facts.vllm_version,
            body_schemas=facts.body_schemas,
        )

    async def post(
        self, endpoint: str, body: bytes, *, priority: int = 0, on_event: OnEvent | None = None
    ) -> Response:
        """Post the body; cancelling closes the connection, and the server then aborts."""
        may_stream = on_event is not None
        refused = refusal(
            endpoint, body, self._endpoints, self._max_num_seqs, may_stream=may_stream
        )
        if refused is not None:
            return refused
        streamed = StreamedAnswer(endpoint, body, on_event) if on_event else None
        limit_s = self._limits.max_request_s
        try:
            async with asyncio.timeout(limit_s) as scope:
                own = streamed.body if streamed else body
                own = with_priority(own, priority if self._is_vllm else None)
                response = await self._posted(endpoint, own, streamed)
        except TimeoutError as error:
            if scope.expired():
                return replace(too_long(limit_s), cut="max_request_s")
            message = f"{self._url} did not answer: {error}"
            raise EngineUnavailable(message, is_refusal=True) from error
        except aiohttp.ClientConnectorError as error:
            message = f"{self._url} is unreachable: {error}"
            raise EngineUnavailable(message, is_refusal=True) from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise await self._interrupted(error) from error
        return await self._judged(response)

    async def check(self, timeout_s: float) -> None:
        """Request the health path; see `Engine.check`."""
        await self._server.check(timeout_s)

    def evidence(self) -> Mapping[str, Any]:
        """Return the address without user and password; the server's own log has the rest."""
        return {"vllm_url": self._url}

    def expect_group(self, number: int) -> None:
        """Do nothing; a request starts when it comes."""

    def stats(self) -> EngineStats:
        """Return zeros, because the server's own /metrics has these numbers."""
        return EngineStats()

    async def close(self) -> None:
        """Close the connections; leave the server running, because its operator stops it."""
        await self._server.close()

    async def _posted(
        self, endpoint: str, body: bytes, streamed: StreamedAnswer | None
    ) -> Response:
        async with self._server.post(endpoint, body) as reply:
            if not HTTPStatus.OK <= reply.status <= MAX_STATUS:
                return no_http_status(self._url, reply.status)
            if HTTPStatus.MULTIPLE_CHOICES <= reply.status < HTTPStatus.BAD_REQUEST:
                return error_response(
                    HTTPStatus.INTERNAL_SERVER_ERROR,
                    f"{self._url} redirects {endpoint} to {reply.headers.get('location', '')[:200]!r}; set VLLM_URL to"
                    " where the API itself is",
                    "RedirectError",
                )
            if reply.content_type == "text/event-stream":
                return await self._streamed(reply, streamed) if streamed else stream_refusal()
            max_bytes = self._limits.max_result_bytes
            answer = await at_most(reply, max_bytes + 1)
            if reply.status in UNAVAILABLE:
                raise unavailable(self._url, reply, answer)
            if len(answer) > max_bytes:
                reply.close()
                return too_large(f"more than {max_bytes:,}", max_bytes)
            return response_of(reply.status, answer)

    async def _streamed(self, reply: aiohttp.ClientResponse, streamed: StreamedAnswer) -> Response:
        max_bytes = self._limits.max_result_bytes
        async for data in reply.content.iter_any():
            streamed.feed(data)
            if streamed.num_bytes > max_bytes:
                reply.close()
                return too_large(f"more than {max_bytes:,}", max_bytes)
        return streamed.response()

    async def _interrupted(self, error: Exception) -> EngineError:
        """Return the error for a connection that broke while a request ran.

        - The server is not healthy: `EngineDied`.
        - The server is healthy and only this connection broke: `EngineHungUp`.
        - Another connection broke within `TOGETHER_S`: `EngineUnavailable`, because then the breaks
          prove nothing against any of the requests.
        """
        what = f"the connection to {self._url} broke while a request ran: {error!r}"
        broke_at = time.monotonic()
        self._broke_at.append(broke_at)
        try:
            await self.check(PROBE_S)
        except EngineDied as death:
            return EngineDied(f"{what}; {death}")
        num_together = sum(abs(moment - broke_at) < TOGETHER_S for moment in self._broke_at)
        return EngineHungUp(what) if num_together <= 1 else EngineUnavailable(what)

    async def _judged(self, response: Response) -> Response:
        """Return the response if it is the request's own outcome; raise if it is the server's.

        A 500 is the request's own outcome as long as the server lives.
        """
        if response.status >= HTTPStatus.INTERNAL_SERVER_ERROR or response.finish_reason == ABORTED:
            await self.check(PROBE_S)
        if response.finish_reason == ABORTED:
            raise EngineUnavailable(f"{self._url} aborted the request unasked")
        return response
