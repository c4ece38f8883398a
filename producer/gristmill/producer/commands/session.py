"""What every command that touches the queue begins with: a queue whose Redis has answered."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import click
import orjson
from stamina.instrumentation import RetryDetails, set_on_retry_hooks

from gristmill.producer.client import Client
from gristmill.shared.cli import say
from gristmill.shared.connection import connect
from gristmill.shared.queue import Queue
from gristmill.shared.settings import QueueSettings
from gristmill.shared.tasks import end

T = TypeVar("T")

IDS_A_CALL = 500
SECONDS_BETWEEN_NOTICES = 5.0


@asynccontextmanager
async def open_queue(settings: QueueSettings) -> AsyncIterator[Queue]:
    """Connect, make sure that Redis answers, and say so when it later does not.

    Raises:
        redis.exceptions.RedisError: No answer at the first call; `queue_options` turns it into
            exit code 3. Later calls of `Client` wait instead until Redis is back.
    """
    set_on_retry_hooks([_Notices()])
    redis = connect(settings.redis_url.get_secret_value(), settings.socket_timeout_s)
    try:
        await redis.ping()
        yield Queue(redis, settings.queue, settings.limits)
    finally:
        await redis.aclose()


def on_queue(settings: QueueSettings, work: Callable[[Queue], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on the queue; see `open_queue` and `run`."""

    async def on_open_queue() -> T:
        async with open_queue(settings) as queue:
            return await work(queue)

    return run(on_open_queue())


def on_client(settings: QueueSettings, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on a client of the queue."""

    async def on_open_client(queue: Queue) -> T:
        async with Client(queue, max_request_bytes=settings.max_request_bytes) as client:
            return await work(client)

    return on_queue(settings, on_open_client)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine; Ctrl-C ends it, however it takes its cancellation."""
    return asyncio.run(_run(work))


async def _run(work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    finally:
        await end(task)


class _Notices:
    """Tells people, not too often, that a call waits for Redis."""

    def __init__(self) -> None:
        self._next_s = 0.0

    def __call__(self, details: RetryDetails) -> None:
        if details.retry_num > 3 and time.monotonic() > self._next_s:
            self._next_s = time.monotonic() + SECONDS_BETWEEN_NOTICES
            say(f"Redis does not answer ({details.caused_by}); waiting for it, Ctrl-C stops")


def print_json(value: Any) -> None:
    """Print data for a program: one line of JSON on stdout."""
    click.echo(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS))
