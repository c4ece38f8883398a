"""Find and set when a batch needs a steward: the key `batches_due`, scored by Redis time."""

from dataclasses import dataclass
from typing import Any

from gristmill.producer.batches.batch_records import BatchRecords
from gristmill.producer.batches.batch_state import Phase, phase_of
from gristmill.producer.batches.scripts import lua_script
from gristmill.shared.queue import Queue

MAX_BACKOFF_S = 60
"""Longest delay in seconds, so that a batch continues within a minute after a repair."""


@dataclass(frozen=True, slots=True)
class DueBatch:
    """A batch that a steward should work on now.

    Attributes:
        batch: Id of the batch.
        phase: Its next step.
        num_slices: Slices that stewards began; part of the id of the next job.
    """

    batch: str
    phase: Phase
    num_slices: int


class DueBatches:
    """The times at which the batches of a queue are due for a steward.

    Args:
        queue: Queue of the batches.
        records: The batches of that queue.
    """

    def __init__(self, queue: Queue, records: BatchRecords) -> None:
        self._redis: Any = queue.redis
        self._keys = queue.keys
        self._records = records
        self._due = lua_script(queue.redis, "due")
        self._wake = lua_script(queue.redis, "wake")

    async def batches(self, limit: int = 100) -> list[DueBatch]:
        """Return batches that are due and that no steward holds, longest due first.

        Args:
            limit: Most due batches to look at; fewer are returned if stewards hold some of them.
        """
        ids = await self._due(keys=[self._keys.prefix], args=[limit])
        found = [await self._with_phase(batch.decode()) for batch in ids]
        return [due_batch for due_batch in found if due_batch]

    async def _with_phase(self, batch: str) -> DueBatch | None:
        record, num_slices = await self._records.record_and_slices(batch)
        phase = phase_of(record) if record else None
        if record and phase is None:
            phase = (await self._records.state(batch)).phase
        if phase is None:
            await self.remove(batch)
            return None
        return DueBatch(batch, phase, num_slices)

    async def wake(self, batch: str, delay_s: float = 0) -> None:
        """Make a batch due after a delay in seconds; 0 also wakes a steward."""
        await self._wake(keys=[self._keys.prefix], args=[batch, int(delay_s * 1000)])

    async def back_off(self, batch: str, problem: str) -> float:
        """Note a failed slice and make the batch due later; return the delay in seconds.

        The delay doubles with each failure since the last commit, up to `MAX_BACKOFF_S`.
        """
        key = self._keys.batch_record(batch)
        failures: int = await self._redis.hincrby(key, "failures", 1)
        await self._redis.hset(key, "problem", problem)
        delay_s = float(min(2 ** min(failures, 10), MAX_BACKOFF_S))
        await self.wake(batch, delay_s)
        return delay_s

    async def remove(self, batch: str) -> None:
        """Note that a batch has no next step."""
        await self._redis.zrem(self._keys.batches_due, batch)

    async def ring(self) -> None:
        """Wake a steward that waits."""
        await self._redis.lpush(self._keys.steward_doorbell, "1")
        await self._redis.ltrim(self._keys.steward_doorbell, 0, 3)
