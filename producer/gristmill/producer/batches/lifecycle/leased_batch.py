"""A batch under the lease of this steward: the only way to write a batch that exists."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar, cast

from redis.asyncio.lock import Lock
from redis.exceptions import LockError

from gristmill.producer.batches.batch_state import BatchState, Checkpoint
from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.batches.objects import BatchRecord, FileRecord
from gristmill.producer.batches.parts import Part
from gristmill.producer.batches.rows import LineReader
from gristmill.producer.batches.scripts import lua_script
from gristmill.shared.errors import LeaseLost
from gristmill.shared.operations import HeldLease
from gristmill.shared.pauses import batch_scope

T = TypeVar("T")

LEASE_S = 15.0
"""Seconds after the last `extend` at which another steward may take the batch."""


class LeasedBatch:
    """The right to work on one batch, and the batch as of its last commit.

    The lease ends `LEASE_S` after the last `extend`. Make one with `take`.

    Args:
        store: The batches of the queue.
        state: The batch as it was read last.
        lock: redis-py's lock, acquired.

    Attributes:
        id: Id of the batch.
        state: The batch as of the last commit, or the last `reload`.
        held: Key and token of the lease; `Queue.submit` checks it.
    """

    def __init__(self, store: BatchStore, state: BatchState, lock: Lock) -> None:
        self._store = store
        self._lock = lock
        self._commit = lua_script(store.queue.redis, "commit")
        self.id = state.record.id
        self.state = state
        self.held = HeldLease(store.queue.keys.batch_lease(self.id), lock.local.token.decode())

    @classmethod
    async def take(cls, store: BatchStore, batch: str) -> "LeasedBatch | None":
        """Take the lease of a batch; return None if another steward holds it.

        Raises:
            NotFound: There is no such batch.
        """
        state = await store.records.state(batch)
        redis: Any = store.queue.redis
        lock = Lock(
            redis, store.queue.keys.batch_lease(batch), timeout=LEASE_S, blocking=False, thread_local=False,
        )  # fmt: skip
        if not await cast(Awaitable[bool], lock.acquire()):
            return None
        await redis.hincrby(store.queue.keys.batch_record(batch), "slices", 1)
        return cls(store, state, lock)

    @property
    def record(self) -> BatchRecord:
        """The record of the batch."""
        return self.state.record

    def line_reader(self) -> LineReader:
        """Return a reader of lines. Its default deadline is the end of the completion window."""
        settings, record = self._store.settings, self.record
        remaining_s = max(0.001, record.expires_at - time.time())
        defaults = {
            "priority": record.priority, "tenant": record.tenant, "reply": record.id, "batch": record.id,
            "deadline_s": remaining_s,
        }  # fmt: skip
        return LineReader(
            record.id, max_request_bytes=settings.max_request_bytes,
            refuses_unknown=record.unknown_fields == "refuse", default_endpoint=record.endpoint, defaults=defaults, max_priority=record.max_priority,
        )  # fmt: skip

    async def reload(self) -> None:
        """Read the state again: others may have committed before this lease, or cancelled it."""
        self.state = await self._store.records.state(self.id)

    async def extend(self) -> None:
        """Renew the lease.

        Raises:
            redis.exceptions.LockError: The lease has ended.
        """
        await self._lock.extend(LEASE_S, replace_ttl=True)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and renew the lease until it ends.

        Raises:
            redis.exceptions.LockError: The lease has ended, and the coroutine is cancelled.
        """
        task = asyncio.create_task(work)
        try:
            while not (await asyncio.wait([task], timeout=LEASE_S / 5))[0]:
                await self.extend()
        finally:
            task.cancel()
        return task.result()

    async def run_blocking(self, work: Callable[[], T]) -> T:
        """Run a blocking function, such as one of the storage, in a thread; renew the lease until it ends.

        Raises:
            redis.exceptions.LockError: The lease has ended. The thread goes on, but its result is ignored.
        """
        return await self.run(asyncio.to_thread(work))

    async def commit(
        self,
        record: BatchRecord,
        checkpoint: Checkpoint,
        *,
        parts: Sequence[Part] = (),
        new_files: Sequence[FileRecord] = (),
    ) -> None:
        """Write record, checkpoint, new parts and new files in one step, and update `state`.

        The same commit, sent again after a lost reply, changes nothing. The pause of a batch goes with its end.
        A child gets its TTL from its parent.

        Args:
            record: New record of the batch.
            checkpoint: New checkpoint of the batch.
            parts: Parts that were written since the last commit.
            new_files: Files to list for the tenant.

        Raises:
            LeaseLost: The lease has ended; another steward may hold the batch. Nothing was written.
        """
        num_commits = self.state.num_commits + 1
        has_ttl = record.is_final and not record.home
        ttl_s = self._store.settings.batch_ttl_s if has_ttl else 0
        state = replace(self.state, record=record, checkpoint=checkpoint, num_commits=num_commits)
        args: list[Any] = [
            record.id, self.held.token, num_commits, record.tenant, record.model_dump_json(),
            checkpoint.dump(), ttl_s, state.work or "", len(parts), *(part.dump() for part in parts),
        ]  # fmt: skip
        for file in new_files:
            args += [file.id, file.model_dump_json(), file.expires_at or 0]
        if not await self._commit(keys=[self._store.queue.keys.prefix], args=args):
            raise LeaseLost(f"batch {self.id} is with another steward now", self.id)
        if record.is_final:
            await self._store.queue.pauses.resume(batch_scope(record.id))
        self.state = state

    async def release(self) -> None:
        """Give the lease back, if it has not ended, and wake a steward."""
        with suppress(LockError):  # it has ended, and another may hold the batch
            await self._lock.release()
        await self._store.due.ring()
