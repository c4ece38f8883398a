"""Gristmill: submits are in bulk, with `SINGLE` one per call; the guarantees are the same."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from marks import gated_async

from gristmill.producer import Client
from gristmill.shared.connection import connect
from gristmill.shared.log import configure_logging
from gristmill.shared.queue import Queue
from gristmill.shared.request import COMPLETIONS, Request
from gristmill.shared.settings import read_settings
from gristmill.worker.__main__ import serve
from gristmill.worker.engine import StubEngine
from gristmill.worker.engine.interface import Response
from gristmill.worker.settings import WorkerSettings

client: Client


class MarkingEngine(StubEngine):
    """Answers at once, but a prompt `slow N` only when the gate opens; leaves marks."""

    async def post(self, endpoint: str, body: bytes, **options: Any) -> Response:
        if b"slow" not in body:
            return await super().post(endpoint, body, **options)
        number = int(body.split(b"slow ")[1].split(b'"')[0])
        await gated_async(number)
        return await super().post(endpoint, body, **options)


def request(prompt: str) -> Request:
    return Request.from_body({"prompt": prompt, "max_tokens": 1}, endpoint=COMPLETIONS)


@asynccontextmanager
async def opened() -> AsyncIterator[None]:
    global client  # the peers' modules have module clients too
    async with Client(queue=Queue(connect(os.environ["REDIS_URL"]))) as client:
        yield


async def submit(number: int) -> None:
    if "SINGLE" not in os.environ:
        await client.submit_many(request(f"word{i}") for i in range(number))
        return
    for i in range(number):
        await client.submit(request(f"word{i}"))


async def answer() -> None:
    await client.wait(await client.submit(request("word")), 60)


async def submit_slow(number: int) -> None:
    await client.submit_many(request(f"slow {i}") for i in range(number))


if __name__ == "__main__":
    configure_logging()
    raise SystemExit(asyncio.run(serve(read_settings(WorkerSettings), MarkingEngine())))
