"""Call an engine behind a URL: a vLLM server, or any server with its OpenAI-compatible API.

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
import structlog
from yarl import URL

from gristmill.shared.body_schemas import published_facts
from gristmill.shared.errors import (
    EngineDied,
    EngineError,
    EngineHungUp,
    EngineUnavailable,
    SettingsError,
)
from gristmill.shared.request import ENDPOINTS
from gristmill.worker.engine.bodies import ABORTED, response_of, with_priority
from gristmill.worker.engine.endpoints import served
from gristmill.worker.engine.interface import EngineInfo, EngineStats, Response, RunLimits
from gristmill.worker.engine.refusals import (
    error_response,
    refusal,
    stream_refusal,
    too_large,
    too_long,
)
from gristmill.worker.engine.remote_replies import UNAVAILABLE, at_most, is_name, unavailable

log = structlog.get_logger(__name__)

CONNECT_S = 10.0
"""Most seconds to open a connection."""

PROBE_S = 10.0
"""Most seconds to wait for /health and other short answers."""

POLL_S = 0.5
"""Seconds between two looks at a server that is not healthy yet."""

NOTICE_S = 10.0
"""Seconds between two log lines about such a server."""

TOGETHER_S = 1.0
"""Seconds within which broken connections count as having one cause."""

KEEP_ALIVE_S = 3.0
"""Seconds to keep an idle connection.

vLLM closes an idle connection after 5 s; a POST on a connection kept longer may find it closed.
"""


class RemoteEngine:
    """An engine that runs in a server at a URL; see `Engine` for the contract."""

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        *,
        limits: RunLimits | None = None,
        max_num_seqs: int = 256,
        max_connections: int = 0,
        start_timeout_s: float = 600.0,
    ) -> None:
        """Keep the address; send nothing before `start`.

        Args:
            url: Base URL, with or without `/v1`.
            api_key: API key, sent as a bearer token.
            limits: Limits of a request and its answer. `max_repeated_tokens` has no effect, because
                the server's tokens cannot be seen from here.
            max_num_seqs: Sequences that the server runs at the same time; the server does not say.
            max_connections: Most connections at the same time; 0 for no limit.
            start_timeout_s: Seconds that `start` waits for the server to be healthy.
        """
        try:
            self._base_url = URL(url.rstrip("/").removesuffix("/v1"))
            self._url = str(
                self._base_url.with_user(None)
            )  # for logs and errors: without the login
        except ValueError:
            raise SettingsError("VLLM_URL cannot be read; write http://host:8000") from None
        if self._base_url.scheme not in ("http", "https") or not self._base_url.host:
            raise SettingsError(f"VLLM_URL is {self._url!r}; write http://host:8000, or https://")
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._max_num_seqs, self._max_connections = max_num_seqs, max_connections
        self._start_timeout_s = start_timeout_s
        self._limits = limits or RunLimits()
        self._session: aiohttp.ClientSession | None = None
        self._broke_at = deque[float](maxlen=2)  # monotonic seconds of the last two breaks
        self._endpoints: tuple[str, ...] = ()

    async def start(self) -> EngineInfo:
        """Wait until the server is healthy, then ask what it serves; see `Engine.start`.

        It posts no request, because a healthy server has warmed itself up.
        """
        await self.close()
        self._session = self._connected()
        try:
            await self._until_healthy()
            return await self._described()
        except BaseException:
            await self.close()
            raise

    async def post(self, endpoint: str, body: bytes, *, priority: int = 0) -> Response:
        """Post the body; cancelling closes the connection, and the server then aborts."""
        refused = refusal(endpoint, body, self._endpoints, self._max_num_seqs)
        if refused is not None:
            return refused
        limit_s = self._limits.max_request_s
        try:
            async with asyncio.timeout(limit_s) as scope:
                response = await self._posted(endpoint, with_priority(body, priority))
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
        """Request /health; see `Engine.check`."""
        try:
            async with asyncio.timeout(timeout_s), self._live().get("/health") as reply:
                status = reply.status
        except (aiohttp.ClientError, OSError) as error:  # a timeout is an OSError
            text = str(error) or type(error).__name__
            raise EngineDied(f"{self._url}/health did not answer: {text}") from error
        if status != HTTPStatus.OK:
            raise EngineDied(f"{self._url}/health answered {status}")

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
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _connected(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            base_url=self._base_url,
            headers=self._headers,
            connector=aiohttp.TCPConnector(
                limit=self._max_connections, keepalive_timeout=KEEP_ALIVE_S
            ),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
        )

    def _live(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise EngineDied("the engine is not started")
        return self._session

    async def _until_healthy(self) -> None:
        started_at = told_at = time.monotonic()
        while True:
            try:
                return await self.check(PROBE_S)
            except EngineDied as error:
                now = time.monotonic()
                if now > started_at + self._start_timeout_s:
                    message = f"no healthy server within {self._start_timeout_s} s: {error}"
                    raise EngineDied(message) from error
                if now > told_at + NOTICE_S:
                    told_at = now
                    remedy = (
                        "check that the server runs, that this machine may reach it, and VLLM_URL"
                    )
                    log.warning("engine.waited_for", error=str(error), remedy=remedy)
            await asyncio.sleep(POLL_S)

    async def _described(self) -> EngineInfo:
        cards = (await self._asked("/v1/models")).get("data")
        cards = cards if isinstance(cards, list) else []
        models = [card for card in cards if isinstance(card, dict) and is_name(card.get("id"))]
        if not models:
            raise EngineDied(
                f"{self._url}/v1/models names no model; is this an OpenAI-compatible API?"
            )
        version = (await self._asked("/version")).get("version")
        version = version if is_name(version) else ""
        openapi = await self._asked("/openapi.json")
        paths = openapi.get("paths")
        self._endpoints = served(ENDPOINTS if paths is None else paths)
        log.info("engine.reached", url=self._url, model=models[0]["id"], vllm_version=version)
        return EngineInfo(
            transport="remote",
            models=tuple(card["id"] for card in models),
            endpoints=self._endpoints,
            max_num_seqs=self._max_num_seqs,
            max_model_len=models[0].get("max_model_len") or 0,
            vllm_version=version,
            body_schemas=published_facts(openapi, self._endpoints),
        )

    async def _asked(self, path: str) -> Mapping[str, Any]:
        """Return the JSON object at a path; an empty one if the server does not have it."""
        try:
            async with asyncio.timeout(PROBE_S), self._live().get(path) as reply:
                fields = await reply.json(content_type=None) if reply.ok else {}
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise EngineDied(f"{self._url}{path} did not answer: {error}") from error
        return fields if isinstance(fields, dict) else {}

    async def _posted(self, endpoint: str, body: bytes) -> Response:
        headers = {"content-type": "application/json"}
        posting = self._live().post(endpoint, data=body, headers=headers, allow_redirects=False)
        async with posting as reply:
            if HTTPStatus.MULTIPLE_CHOICES <= reply.status < HTTPStatus.BAD_REQUEST:
                return error_response(
                    HTTPStatus.INTERNAL_SERVER_ERROR,
                    f"{self._url} redirects {endpoint} to {reply.headers.get('location', '')[:200]!r}; set VLLM_URL to"
                    " where the API itself is",
                    "RedirectError",
                )
            if reply.content_type == "text/event-stream":
                return stream_refusal()
            max_bytes = self._limits.max_result_bytes
            answer = await at_most(reply, max_bytes + 1)
            if reply.status in UNAVAILABLE:
                raise unavailable(self._url, reply, answer)
            if len(answer) > max_bytes:
                reply.close()
                return too_large(f"more than {max_bytes:,}", max_bytes)
            return response_of(reply.status, answer)

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
