"""A server behind `VLLM_URL` that does not serve some requests at first: the true `RemoteEngine` speaks with it."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
from aiohttp import web
from faults.processes import UNSERVED_AT_FIRST, FaultyEngine

from gristmill.worker.engine.stub import MODEL

NUM_UNSERVED = 2
"""Tries of such a request that fail; the third one of `max_attempts` is served."""

ANSWERS = (429, 502, 503, 504, None)
"""Statuses of a try that fails; None breaks off the connection."""


@asynccontextmanager
async def faulty_server() -> AsyncIterator[str]:
    """Run the server; yields its URL."""
    engine = FaultyEngine()
    await engine.start()
    num_tries = Counter[bytes]()

    async def post(request: web.Request) -> web.Response:
        body = await request.read()
        kind, _, number = str(orjson.loads(body)["prompt"]).partition(" ")
        num_tries[body] += 1
        if kind == UNSERVED_AT_FIRST and num_tries[body] <= NUM_UNSERVED:
            return _refuse(request, ANSWERS[int(number) % len(ANSWERS)])
        response = await engine.post(request.path, body)
        return web.Response(status=response.status, body=response.body)

    async def health(_: web.Request) -> web.Response:
        return web.Response()

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": MODEL}]})

    app = web.Application()
    app.add_routes(
        [
            web.get("/health", health),
            web.get("/v1/models", models),
            web.post("/v1/completions", post),
        ]
    )
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
        await engine.close()


def _refuse(request: web.Request, status: int | None) -> web.Response:
    if status is None and request.transport:
        request.transport.abort()
    return web.Response(status=status or 500)
