"""Stewards that die at a chosen call, as by `kill -9`."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import RedisCluster

from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.batches.lifecycle import MayGoOn, advance
from gristmill.shared.connection import connect
from gristmill.shared.queue import Queue


class Killed(BaseException):
    """Stands for `kill -9`: no code after it runs."""


class Mortal:
    """Kills a steward after a number of calls to Redis and the storage.

    Args:
        store: Store that only this steward uses.
        calls: Number of the call at which it dies; chance decides whether this call takes effect.
        chance: Source of random numbers.
    """

    def __init__(self, store: BatchStore, calls: int, chance: random.Random) -> None:
        self._calls = calls
        self._chance = chance
        redis: Any = store.queue.redis
        redis.execute_command = self._dying(redis.execute_command)
        self._write = store.storage.write
        store.storage.write = self.write  # type: ignore[method-assign]  # the fault is injected here

    def _dying(self, execute: Any) -> Any:
        async def execute_or_die(*args: Any, **options: Any) -> Any:
            self._calls -= 1
            if self._calls < 0:
                raise Killed
            if self._calls == 0:
                if self._chance.random() < 0.5:
                    await execute(*args, **options)
                raise Killed
            return await execute(*args, **options)

        return execute_or_die

    def write(self, path: str, data: bytes) -> None:
        self._calls -= 1
        if self._calls <= 0:
            self._write(path, data[: len(data) // 2])
            raise Killed
        self._write(path, data)


@asynccontextmanager
async def connected_again(url: str, queue: Queue) -> AsyncIterator[Queue]:
    """Open a queue with a connection of its own, as another process has."""
    redis = connect(url)
    try:
        if isinstance(redis, RedisCluster):
            await redis.initialize()
        yield Queue(redis, queue.keys.queue, queue.limits)
    finally:
        await redis.aclose()


async def dies(
    queue: Queue,
    store: BatchStore,
    batch: str,
    calls: int,
    chance: random.Random,
    may_go_on: MayGoOn = lambda _: True,
) -> bool:
    """Be a steward for one slice of a batch; return True if it was killed. Its lease then ends at once.

    Args:
        queue: A queue of the same Redis, on a connection that lives on.
        store: Store that only this steward uses.
        batch: Id of the batch.
        calls: Number of the call at which the steward dies.
        chance: Source of random numbers.
        may_go_on: False ends the slice.
    """
    Mortal(store, calls, chance)
    try:
        await advance(store, batch, may_go_on)
    except Killed:
        await queue.redis.unlink(store.queue.keys.batch_lease(batch))
        return True
    return False


def last_call(chance: random.Random, num_deaths: int, most: int) -> int:
    """Draw the number of the call at which the next steward dies, below `most`.

    The first steward dies within its first 3 calls, which every slice makes. So each schedule kills somebody.
    """
    return chance.randrange(1, most if num_deaths else 4)
