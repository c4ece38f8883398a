"""Stewards that die at a chosen call, as by `kill -9`."""

import random
from typing import Any

from gristmill.producer.batches.batch_store import BatchStore


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
