"""Find and set when a batch needs a steward, and which tenant's turn it is.

The keys `batches_due:<work>:<tenant>` have the times, scored by Redis time. The key `steward_time:<work>` counts the
time that stewards gave each tenant. The order is that of start-time fair queueing (Goyal, Vin, Cheng 1996): a tenant
that comes back counts as if it had been served as much as the last one.
"""

from dataclasses import dataclass
from typing import Any, get_args

from gristmill.producer.batches.batch_records import BatchRecords
from gristmill.producer.batches.batch_state import WORK_OF, BatchState, Phase, Work, phase_of
from gristmill.producer.batches.scripts import lua_script
from gristmill.shared.queue_access import QueueAccess

MAX_BACKOFF_S = 60
"""Longest delay in seconds, so that a batch continues within a minute after a repair."""

RESERVED_S = 3.0
"""Seconds that a tenant is charged when its piece of work begins; at its end the charge is corrected."""

MAX_CHARGED_S = 10.0
"""Most seconds that one piece counts. Longer pieces are those that nobody waited for, and cost a tenant no turn."""


PARTS_KEPT_S = 60.0
"""Seconds from the end of a batch's webhook until its parts are deleted."""


@dataclass(frozen=True, slots=True)
class DueBatch:
    """A batch that a steward should work on now.

    Attributes:
        batch: Id of the batch.
        tenant: Its owner.
        work: The kind of work of its next step.
        phase: Its next step.
        num_slices: Slices that stewards began; part of the id of the next job.
    """

    batch: str
    tenant: str
    work: Work
    phase: Phase
    num_slices: int


class DueBatches:
    """The times at which the batches of a queue are due for a steward.

    Args:
        queue: Queue of the batches.
        records: The batches of that queue.
    """

    def __init__(self, queue: QueueAccess, records: BatchRecords) -> None:
        self._redis: Any = queue.redis
        self._keys = queue.keys
        self._records = records
        self._due = lua_script(queue.redis, "due")
        self._wake = lua_script(queue.redis, "wake")
        self._charge = lua_script(queue.redis, "charge")
        self._overdue = lua_script(queue.redis, "overdue")

    async def batches(
        self, work: Work, *, max_a_tenant: int = 4, limit: int = 100
    ) -> list[DueBatch]:
        """Return batches that are due and that no steward holds.

        The tenant to which stewards gave the least time comes first; its own batches are longest due first.

        Args:
            work: Kind of work that they need.
            max_a_tenant: Most batches of one tenant.
            limit: Most batches.
        """
        names = await self._due(keys=[self._keys.prefix], args=[work, max_a_tenant, limit])
        pairs = [
            (tenant.decode(), batch.decode())
            for tenant, batch in zip(names[::2], names[1::2], strict=True)
        ]
        found = [await self._with_phase(work, tenant, batch) for tenant, batch in pairs]
        return [due_batch for due_batch in found if due_batch]

    async def _with_phase(self, work: Work, tenant: str, batch: str) -> DueBatch | None:
        record, num_slices = await self._records.record_and_slices(batch)
        phase = phase_of(record) if record else None
        if record and phase is None:
            phase = (await self._records.state(batch)).phase
        if phase is None or WORK_OF[phase] != work:
            if phase is not None:  # a steward died between two commands
                await self.wake(WORK_OF[phase], tenant, batch)
            await self._remove(work, tenant, batch)
            return None
        return DueBatch(batch, tenant, work, phase, num_slices)

    async def has_work(self, work: Work) -> bool:
        """Return whether any batch needs this kind of work, now or later, also while a steward does it."""
        tenants = await self._redis.zrange(self._keys.steward_time(work), 0, -1)
        keys = [self._keys.batches_due(work, tenant.decode()) for tenant in tenants]
        return bool(keys) and bool(await self._redis.exists(*keys))

    async def overdue_s(self) -> dict[Work, float]:
        """Return for each kind of work how long a batch has been due at most while no steward holds it.

        Returns:
            Kind of work -> seconds; 0 if no batch is due. See `lua/overdue.lua` for the limits of the look.
        """
        works = get_args(Work)
        found = await self._overdue(keys=[self._keys.prefix], args=works)
        return {work: ms / 1000 for work, ms in zip(works, found, strict=True)}

    async def begin(self, due_batch: DueBatch) -> None:
        """Charge a tenant for the beginning of a piece of work."""
        await self._count(due_batch.work, due_batch.tenant, RESERVED_S, is_served=True)

    async def end(self, work: Work, tenant: str, duration_s: float) -> None:
        """Correct the charge of `begin` to the duration of the piece."""
        seconds = min(duration_s, MAX_CHARGED_S) - RESERVED_S
        await self._count(work, tenant, seconds, is_served=False)

    async def _count(self, work: Work, tenant: str, seconds: float, *, is_served: bool) -> None:
        args = [work, tenant, int(seconds * 1000), int(is_served)]
        await self._charge(keys=[self._keys.prefix], args=args)

    async def wake(self, work: Work, tenant: str, batch: str, delay_s: float = 0) -> None:
        """Make a batch due after a delay in seconds; 0 also wakes a steward."""
        args = [batch, tenant, work, int(delay_s * 1000)]
        await self._wake(keys=[self._keys.prefix], args=args)

    async def back_off(self, state: BatchState, problem: str) -> float:
        """Note a failed slice and make the batch due later; return the delay in seconds.

        The delay doubles with each failure since the last commit, up to `MAX_BACKOFF_S`.
        """
        batch = state.record.id
        key = self._keys.batch_record(batch)
        failures: int = await self._redis.hincrby(key, "failures", 1)
        await self._redis.hset(key, "problem", problem)
        delay_s = float(min(2 ** min(failures, 10), MAX_BACKOFF_S))
        if state.work:
            await self.wake(state.work, state.record.tenant, batch, delay_s)
        return delay_s

    async def announced(self, batch: str) -> None:
        """Note that the webhook of a batch is done; the batch's parts are due for deletion after a minute.

        A Redis that loses its last moments may need the parts until then.
        """
        await self._records.mark_announced(batch)
        state = await self._records.state(batch)
        await self._remove("webhooks", state.record.tenant, batch)
        if state.work:
            await self.wake(state.work, state.record.tenant, batch, PARTS_KEPT_S)

    async def _remove(self, work: Work, tenant: str, batch: str) -> None:
        await self._redis.zrem(self._keys.batches_due(work, tenant), batch)

    async def ring(self) -> None:
        """Wake a steward that waits."""
        await self._redis.lpush(self._keys.steward_doorbell, "1")
        await self._redis.ltrim(self._keys.steward_doorbell, 0, 3)
