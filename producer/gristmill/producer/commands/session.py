"""Open the queue for a command once Redis has answered, and run the command's coroutine."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, BinaryIO, TypeVar

import click
import orjson

from gristmill.producer.client import Client
from gristmill.producer.tenant_move import move_all_tenants
from gristmill.producer.tenants import Tenants
from gristmill.shared.cli import say
from gristmill.shared.connection import connect
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.format_check import check_format
from gristmill.shared.key_scan import queue_names
from gristmill.shared.one_line import json_line
from gristmill.shared.queue import Queue
from gristmill.shared.queue_stats import num_live
from gristmill.shared.redis_retry import RETRIES_BEFORE_NOTICE, announce_redis_waits
from gristmill.shared.redis_types import AnyRedis
from gristmill.shared.settings import QueueSettings
from gristmill.shared.tasks import end

T = TypeVar("T")

NOTICE_INTERVAL_S = 5.0


@asynccontextmanager
async def open_redis(settings: QueueSettings) -> AsyncIterator[AnyRedis]:
    """Connect and check that Redis answers. From then on, print a notice while it does not answer.

    Raises:
        redis.exceptions.RedisError: Redis does not answer the first call; `queue_options` turns
            this into exit code 3. Later calls of `Client` wait instead until Redis is back.
    """
    url = settings.redis_url.get_secret_value()
    announce_redis_waits(
        url, retries_before=RETRIES_BEFORE_NOTICE, interval_s=NOTICE_INTERVAL_S, tell=_tell_wait
    )
    redis = connect(url, settings.socket_timeout_s)
    try:
        await redis.ping()
        yield redis
    finally:
        await redis.aclose()


@asynccontextmanager
async def open_queue(settings: QueueSettings, *, any_format: bool = False) -> AsyncIterator[Queue]:
    """Open the queue of the settings; see `open_redis`.

    Args:
        settings: Which Redis and which queue.
        any_format: True accepts a queue that another version wrote, to delete it.

    Raises:
        WrongFormat: Another version wrote the queue.
    """
    async with open_redis(settings) as redis:
        queue = Queue(redis, settings.queue, settings.limits)
        if not any_format:
            await check_format(redis, queue.keys)
        yield queue


def on_queue(
    settings: QueueSettings,
    work: Callable[[Queue], Coroutine[Any, Any, T]],
    *,
    any_format: bool = False,
) -> T:
    """Run a coroutine on the queue; see `open_queue` and `run`."""

    async def on_open_queue() -> T:
        async with open_queue(settings, any_format=any_format) as queue:
            return await work(queue)

    return run(on_open_queue())


def on_queues(
    settings: QueueSettings,
    only: str | None,
    work: Callable[[Sequence[Queue]], Coroutine[Any, Any, T]],
) -> T:
    """Run a coroutine on one queue, or on all that have a key; see `run`.

    Raises:
        WrongFormat: Another version wrote a queue.
    """

    async def on_open_redis() -> T:
        async with open_redis(settings) as redis:
            names = [only] if only else sorted(await queue_names(redis))
            queues = [Queue(redis, name, settings.limits) for name in names]
            for each in queues:
                await check_format(redis, each.keys)
            return await work(queues)

    return run(on_open_redis())


def on_redis(settings: QueueSettings, work: Callable[[AnyRedis], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on a Redis; see `open_redis` and `run`."""

    async def on_open_redis() -> T:
        async with open_redis(settings) as redis:
            return await work(redis)

    return run(on_open_redis())


def on_tenants(settings: QueueSettings, work: Callable[[Tenants], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on the tenants of a Redis, once those of an earlier version were moved; see `run`.

    Raises:
        WrongFormat: A tenant of an earlier version cannot move.
    """

    async def on_moved(redis: AnyRedis) -> T:
        await move_all_tenants(redis)
        return await work(Tenants(redis))

    return on_redis(settings, on_moved)


def on_client(
    settings: QueueSettings,
    work: Callable[[Client], Coroutine[Any, Any, T]],
    *,
    is_quiet: bool = True,
) -> T:
    """Run a coroutine on a client of the queue.

    Args:
        settings: Which Redis and which queue.
        work: Makes the coroutine.
        is_quiet: False lets the client warn when it waits and no worker lives.
    """

    async def on_open_client(queue: Queue) -> T:
        async with Client(settings, queue=queue, is_quiet=is_quiet) as client:
            return await work(client)

    return on_queue(settings, on_open_client)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine; Ctrl-C ends it, even if it loses its first cancellation."""
    return asyncio.run(_run(work))


async def _run(work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    finally:
        await end(task)


def absence(queue: str, workers: Mapping[str, int]) -> str | None:
    """Return a notice if no worker of the queue is alive, else None.

    Args:
        queue: Name of the queue.
        workers: Worker -> milliseconds left of its lease; 0 or less for a dead worker that was not
            reaped yet.
    """
    if num_live(workers):
        return None
    what = f"no worker of queue {queue} is alive" if workers else f"no worker serves queue {queue}"
    return f"{what}; start one: gristmill worker --queue {queue} -- --model MODEL"


def _tell_wait(notice: str) -> None:
    say(f"{notice}, Ctrl-C stops")


def stdin_bytes() -> BinaryIO:
    """Return stdin as bytes.

    Raises:
        InvalidRequest: The process was started with stdin closed.
    """
    if sys.stdin is None:
        raise InvalidRequest("stdin is closed; pipe a JSONL file into it, or name the file")
    return sys.stdin.buffer


def stdout_bytes() -> BinaryIO:
    """Return stdout as bytes.

    Raises:
        InvalidRequest: The process was started with stdout closed.
    """
    if sys.stdout is None:
        raise InvalidRequest("stdout is closed; name a file for the rows with -o")
    return sys.stdout.buffer


def print_json(value: Any) -> None:
    """Print data for a program: one line of JSON on stdout."""
    click.echo(json_line(value, orjson.OPT_NON_STR_KEYS), nl=False)
