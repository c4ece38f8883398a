"""Reach a server behind a URL: its connections, its health, and short questions to it. `remote.py` posts by it."""

import asyncio
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict
from http import HTTPStatus
from typing import Any

import aiohttp
import structlog
from yarl import URL

from gristmill.shared.errors import EngineDied, SettingsError
from gristmill.shared.trace_context import trace_headers
from gristmill.worker.engine.remote_facts import (
    MODELS,
    NO_SIZE,
    Missing,
    ServerFacts,
    check_key,
    no_health_path,
    server_facts,
)
from gristmill.worker.engine.remote_replies import json_object

log = structlog.get_logger(__name__)

CONNECT_S = 10.0
"""Most seconds to open a connection."""

PROBE_S = 10.0
"""Most seconds to wait for the health path and other short answers."""

POLL_S = 0.5
"""Seconds between two looks at a server that is not healthy yet."""

NOTICE_S = 10.0
"""Seconds between two log lines about such a server."""

KEEP_ALIVE_S = 3.0
"""Seconds to keep an idle connection.

vLLM closes an idle connection after 5 s; a POST on a connection kept longer may find it closed.
"""


class RemoteServer:
    """A server with an OpenAI-compatible API at a URL.

    Args:
        url: Base URL, with or without `/v1`; it may have a path before that.
        api_key: API key, sent as a bearer token.
        health_path: Path below the base URL whose 2xx says that the server works; empty for `/v1/models`.
        has_size: True if a setting says how many requests the server runs at a time.

    Attributes:
        url: Base URL without the login, for logs and errors.
    """

    def __init__(self, url: str, api_key: str | None, health_path: str, *, has_size: bool) -> None:
        try:
            self._base_url = URL(url.rstrip("/").removesuffix("/v1") + "/")
            self.url = str(self._base_url.with_user(None)).rstrip("/")
        except ValueError:
            raise SettingsError("VLLM_URL cannot be read; write http://host:8000") from None
        if self._base_url.scheme not in ("http", "https") or not self._base_url.host:
            raise SettingsError(f"VLLM_URL is {self.url!r}; write http://host:8000, or https://")
        if api_key and self._base_url.user:
            raise SettingsError("VLLM_URL has a user, and VLLM_API_KEY is set; remove one of them")
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._health_path = health_path or MODELS
        self._has_size = has_size
        self._session: aiohttp.ClientSession | None = None
        self._told: set[str] = set()  # names of missing facts that the log has

    async def connect(self, start_timeout_s: float) -> ServerFacts:
        """Wait until the server is healthy, then ask what it serves; log once what it does not tell.

        Args:
            start_timeout_s: Seconds to wait for the server to be healthy.

        Raises:
            SettingsError: The server refuses the API key.
            EngineDied: The server did not become healthy.
        """
        await self.close()
        self._session = self._new_session()
        try:
            await self._until_healthy(start_timeout_s)
            facts = await server_facts(self._ask, self.url)
        except BaseException:
            await self.close()
            raise
        self._tell(facts.missing if self._has_size else (*facts.missing, NO_SIZE))
        log.info(
            "engine.reached",
            url=self.url,
            model=facts.models[0] if facts.models else "",
            vllm_version=facts.vllm_version,
            health_path=self._health_path,
        )
        return facts

    async def close(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def check(self, timeout_s: float) -> None:
        """Check that the server says that it works.

        Raises:
            EngineDied: It does not, or does not answer within `timeout_s` seconds.
        """
        self._judge(await self._status(self._health_path, timeout_s))

    def post(self, path: str, body: bytes) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Return the context manager of a reply to a JSON body; it follows no redirect."""
        headers = {"content-type": "application/json", **trace_headers()}
        return self._live().post(path[1:], data=body, headers=headers, allow_redirects=False)

    def _new_session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            base_url=self._base_url,
            headers=self._headers,
            connector=aiohttp.TCPConnector(
                limit=0,  # no limit: the worker limits the requests
                keepalive_timeout=KEEP_ALIVE_S,
            ),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
        )

    def _live(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise EngineDied("the engine is not started")
        return self._session

    async def _until_healthy(self, start_timeout_s: float) -> None:
        started_at = told_at = time.monotonic()
        while True:
            try:
                return await self._check_first()
            except EngineDied as error:
                now = time.monotonic()
                if now > started_at + start_timeout_s:
                    message = f"no healthy server within {start_timeout_s} s: {error}"
                    raise EngineDied(message) from error
                if now > told_at + NOTICE_S:
                    told_at = now
                    remedy = (
                        "check that the server runs, that this machine may reach it, VLLM_URL and"
                        " GRISTMILL_VLLM_HEALTH_PATH"
                    )
                    log.warning("engine.waited_for", error=str(error), remedy=remedy)
            await asyncio.sleep(POLL_S)

    async def _check_first(self) -> None:
        """Check the health; of a server without the health path, check `/v1/models` from now on."""
        path = self._health_path
        status = await self._status(path, PROBE_S)
        check_key(status, self.url + path)
        if status == HTTPStatus.NOT_FOUND and _is_ok(await self._status(MODELS, PROBE_S)):
            self._health_path = MODELS
            self._tell((no_health_path(path),))
        else:
            self._judge(status)

    def _tell(self, missing: Iterable[Missing]) -> None:
        """Log each fact that the server does not tell, once in a process."""
        for each in missing:
            if each.fact not in self._told:
                self._told.add(each.fact)
                log.warning("engine.fact_missing", url=self.url, **asdict(each))

    async def _ask(self, path: str) -> tuple[int, Mapping[str, Any]]:
        """Return the status and the JSON object at a path; see `remote_facts.Ask`."""
        try:
            async with asyncio.timeout(PROBE_S), self._live().get(path[1:]) as reply:
                return reply.status, await json_object(reply)
        except (aiohttp.ClientError, OSError) as error:
            raise self._silent(path, error) from error

    async def _status(self, path: str, timeout_s: float) -> int:
        try:
            async with asyncio.timeout(timeout_s), self._live().get(path[1:]) as reply:
                return reply.status
        except (aiohttp.ClientError, OSError) as error:  # a timeout is an OSError
            raise self._silent(path, error) from error

    def _silent(self, path: str, error: Exception) -> EngineDied:
        return EngineDied(f"{self.url}{path} did not answer: {str(error) or type(error).__name__}")

    def _judge(self, status: int) -> None:
        if not _is_ok(status) and status != HTTPStatus.TOO_MANY_REQUESTS:  # too busy, not dead
            raise EngineDied(f"{self.url}{self._health_path} answered {status}")


def _is_ok(status: int) -> bool:
    return HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES
