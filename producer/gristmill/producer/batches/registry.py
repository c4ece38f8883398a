"""What Redis knows of files and batches: their records, whose they are, and what is due.

A record is written whole, by whoever holds the batch's lease (`commit`); what is told from outside
meanwhile (`cancel`) stands in fields of its own, so no writer ever overwrites another's words.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal, TypeVar, cast

from redis.asyncio.lock import Lock

from gristmill.producer.batches.objects import BatchRecord, FileRecord
from gristmill.producer.batches.progress import Part, Progress
from gristmill.shared.errors import InvalidRequest, LeaseLost, LimitReached, NotFound
from gristmill.shared.operations import HeldLease
from gristmill.shared.queue import Queue

T = TypeVar("T")

LEASE_S = 15.0
"""Silence after which a batch is given to another steward."""

MAX_BACKOFF_S = 60

UPLOAD_TTL_S = 24 * 3600
"""Longest way of a file into the storage."""

Phase = Literal["validate", "feed", "finalize", "announce"]


@dataclass(frozen=True, slots=True)
class Work:
    """A batch that a steward should take up now.

    Attributes:
        batch: Its id.
        phase: What is to be done.
        runs: How often somebody took it up; names the job that does it next.
    """

    batch: str
    phase: Phase
    runs: int


@dataclass(frozen=True, slots=True)
class BatchState:
    """All that is written about one batch.

    Attributes:
        record: As of the last commit.
        progress: Likewise.
        is_cancelled: Whether it is to be ended.
        is_announced: Whether its end was told.
        num_commits: How many there were.
        runs: How often a steward took it up.
        problem: Why the last step failed; "" if it did not. For operators: it may name paths.
    """

    record: BatchRecord
    progress: Progress
    is_cancelled: bool
    is_announced: bool
    num_commits: int
    runs: int
    problem: str

    @property
    def phase(self) -> Phase | None:
        """What is to be done next; None if nothing.

        Parts are tidied away after the webhook, a minute later or more: a Redis that loses its last
        moments may have to assemble them again.
        """
        if not self.record.is_final:
            return _phase(self.record)
        if not self.is_announced:
            return "announce"
        return "finalize" if self.progress.has_parts else None


class Registry:
    """Files and batches in Redis.

    Args:
        queue: Whose Redis and whose keys.
    """

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self._redis: Any = queue.redis
        self._keys = queue.keys
        lua = files("gristmill.producer.batches") / "lua"
        self._scripts = {
            name: queue.redis.register_script((lua / f"{name}.lua").read_text())
            for name in ("create", "commit", "due", "wake")
        }

    # --- files

    async def begin_file(self, record: FileRecord) -> None:
        """Note a file that is about to be written; one that is not added within a day expires.

        Whoever dies between two steps, here or below, leaves no more than the sweep finds.
        """
        swept_at = int(time.time()) + UPLOAD_TTL_S
        await self._redis.zadd(self._keys.files_expiring, {record.id: swept_at})
        await self._redis.set(self._keys.file(record.id), record.model_dump_json())

    async def add_file(self, record: FileRecord) -> None:
        """List a file that lies in the storage.

        Raises:
            InvalidRequest: It is not noted any more.
        """
        if not await self._redis.set(self._keys.file(record.id), record.model_dump_json(), xx=True):
            raise InvalidRequest(
                f"file {record.id} was on its way for more than a day, so it was deleted; upload it again, faster"
            )
        await self._redis.zadd(self._keys.files(record.tenant), {record.id: 0})
        await self._redis.zadd(self._keys.files_expiring, {record.id: record.expires_at or 0})

    async def file(self, tenant: str, file_id: str) -> FileRecord:
        """Return a file.

        Raises:
            NotFound: This tenant has none of this id.
        """
        blob = await self._redis.get(self._keys.file(file_id))
        record = FileRecord.model_validate_json(blob) if blob else None
        if record is None or record.tenant != tenant:
            raise NotFound(f"no file {file_id!r}; it was deleted, has expired, or never was here")
        return record

    async def files(
        self, tenant: str, *, after: str | None, limit: int, order: str
    ) -> list[FileRecord]:
        """Return a tenant's files, by the time at which they were made."""
        ids = await self._ids(self._keys.files(tenant), after, limit, is_desc=order == "desc")
        blobs = await self._redis.mget([self._keys.file(file_id) for file_id in ids]) if ids else []
        return [FileRecord.model_validate_json(blob) for blob in blobs if blob]

    async def remove_file(self, record: FileRecord) -> None:
        """Forget a file."""
        await self._redis.zrem(self._keys.files(record.tenant), record.id)
        await self._redis.unlink(self._keys.file(record.id))
        await self._redis.zrem(self._keys.files_expiring, record.id)

    async def expired_files(self, limit: int) -> list[FileRecord]:
        """Return files whose time is over, and forget ids that somebody died over."""
        ids = await self._redis.zrange(
            self._keys.files_expiring, 1, int(time.time()), byscore=True, offset=0, num=limit
        )
        records = []
        for file_id in ids:
            blob = await self._redis.get(self._keys.file(file_id.decode()))
            if blob:
                records.append(FileRecord.model_validate_json(blob))
            else:
                await self._redis.zrem(self._keys.files_expiring, file_id)
        return records

    # --- batches

    async def create(self, record: BatchRecord, max_open: int) -> None:
        """List a batch and wake a steward.

        Raises:
            LimitReached: The tenant has `max_open` that have not ended; 0 for no limit.
        """
        args: list[Any] = [record.id, record.tenant, record.model_dump_json(), max_open]
        if not await self._run("create", *args):
            raise LimitReached(
                f"tenant {record.tenant} has {max_open:,} batches that have not ended, which is its limit;"
                " wait for one, or cancel one"
            )

    async def state(self, batch: str, tenant: str | None = None) -> BatchState:
        """Return all that is written about a batch.

        Args:
            batch: Its id.
            tenant: Whose it must be; None for any.

        Raises:
            NotFound: There is none, or it is another tenant's.
        """
        info = await self._redis.hgetall(self._keys.batchinfo(batch))
        state = _state(info) if b"record" in info else None
        if state is None or tenant not in (None, state.record.tenant):
            raise NotFound(f"no batch {batch!r}; it was forgotten, or never was here")
        return state

    async def batches(self, tenant: str, *, after: str | None, limit: int) -> list[BatchRecord]:
        """Return a tenant's batches, newest first."""
        key = self._keys.batches(tenant)
        records: list[BatchRecord] = []
        for batch in await self._ids(key, after, limit, is_desc=True):
            try:
                records.append((await self.state(batch)).record)
            except NotFound:
                await self._redis.zrem(key, batch)  # its time is over
        return records

    async def open_batches(self, tenant: str) -> list[BatchRecord]:
        """Return a tenant's batches that have not ended."""
        ids = await self._redis.smembers(self._keys.batches_open(tenant))
        return [(await self.state(batch.decode())).record for batch in ids]

    async def cancel(self, batch: str) -> None:
        """Ask the steward to end a batch."""
        await self._redis.hsetnx(self._keys.batchinfo(batch), "cancelling_at", int(time.time()))
        await self.wake(batch)

    async def is_cancelled(self, batch: str) -> bool:
        """Whether a batch is to be ended."""
        return bool(await self._redis.hexists(self._keys.batchinfo(batch), "cancelling_at"))

    async def mark_announced(self, batch: str) -> None:
        """Note that a batch's end was told, or that there is nobody to tell."""
        if await self._redis.exists(self._keys.batchinfo(batch)):
            await self._redis.hsetnx(self._keys.batchinfo(batch), "announced_at", int(time.time()))

    # --- work

    async def _run(self, name: str, *args: Any) -> Any:
        return await self._scripts[name](keys=[self._keys.prefix], args=args)

    async def wake(self, batch: str, delay_s: float = 0) -> None:
        """Make a batch due after a delay, by the clock of Redis."""
        await self._run("wake", batch, int(delay_s * 1000))

    async def ring(self) -> None:
        """Wake a steward."""
        await self._redis.lpush(self._keys.steward_bell, "1")
        await self._redis.ltrim(self._keys.steward_bell, 0, 3)

    async def back_off(self, batch: str, problem: str) -> float:
        """Make a batch due later, and later each time; returns in how many seconds."""
        key = self._keys.batchinfo(batch)
        failures: int = await self._redis.hincrby(key, "failures", 1)
        await self._redis.hset(key, "problem", problem)
        delay_s = float(min(2 ** min(failures, 10), MAX_BACKOFF_S))
        await self.wake(batch, delay_s)
        return delay_s

    async def due(self, limit: int = 100) -> list[Work]:
        """Return batches that are due and that nobody works on."""
        found = [await self._work(batch.decode()) for batch in await self._run("due", limit)]
        return [work for work in found if work]

    async def _work(self, batch: str) -> Work | None:
        key = self._keys.batchinfo(batch)
        record, runs = await self._redis.hmget(key, "record", "runs")
        phase = _phase(BatchRecord.model_validate_json(record)) if record else None
        if record and phase is None:
            phase = (await self.state(batch)).phase
        if phase is None:
            await self.settle(batch)
            return None
        return Work(batch, phase, int(runs or 0))

    async def settle(self, batch: str) -> None:
        """Note that nothing is left to do for a batch."""
        await self._redis.zrem(self._keys.batches_active, batch)

    async def parts(self, batch: str) -> list[Part]:
        """Return what is written of a batch's output, in order."""
        blobs = await self._redis.lrange(self._keys.batchparts(batch), 0, -1)
        return [Part.parse(blob) for blob in blobs]

    async def forget_parts(self, batch: str) -> None:
        """Forget the parts; their rows are in the files."""
        await self._redis.unlink(self._keys.batchparts(batch))

    async def _ids(self, key: str, after: str | None, limit: int, *, is_desc: bool) -> list[str]:
        """Return ids behind `after`; all scores are 0, so Redis sorts them by their bytes."""
        start, end = ("+", "-") if is_desc else ("-", "+")
        if after:
            start = f"({after}"
        ids = await self._redis.zrange(
            key, start, end, bylex=True, desc=is_desc, offset=0, num=limit
        )
        return [found.decode() for found in ids]

    async def lease(self, batch: str) -> "BatchLease | None":
        """Take up a batch; None if another steward has it."""
        lock = Lock(
            self._redis, self._keys.batchlease(batch), timeout=LEASE_S, blocking=False,
            thread_local=False, raise_on_release_error=False,
        )  # fmt: skip
        if not await cast(Awaitable[bool], lock.acquire()):
            return None
        await self._redis.hincrby(self._keys.batchinfo(batch), "runs", 1)
        return BatchLease(self, batch, lock)

    async def write(
        self, lease: "BatchLease", state: BatchState, parts: Sequence[Part], new: Sequence[FileRecord], ttl_s: int,
    ) -> bool:  # fmt: skip
        """Send a commit; see `BatchLease.commit`."""
        record = state.record
        args: list[Any] = [
            record.id, lease.held.token, state.num_commits, record.tenant, record.model_dump_json(),
            state.progress.dump(), ttl_s if record.is_final else 0, len(parts), *(part.dump() for part in parts),
        ]  # fmt: skip
        for file in new:
            args += [file.id, file.model_dump_json(), file.expires_at or 0]
        return bool(await self._run("commit", *args))


class BatchLease:
    """The right to work on one batch, for `LEASE_S` from the last `extend`.

    Args:
        registry: Where it was taken.
        batch: Of which batch.
        lock: redis-py's lock, acquired.
    """

    def __init__(self, registry: Registry, batch: str, lock: Lock) -> None:
        self._registry = registry
        self._lock = lock
        self.batch = batch
        self.held = HeldLease(registry.queue.keys.batchlease(batch), lock.local.token.decode())

    async def extend(self) -> None:
        """Hold it longer.

        Raises:
            redis.exceptions.LockError: It is another's, or its time was over.
        """
        await self._lock.extend(LEASE_S, replace_ttl=True)

    async def hold(self, work: Callable[[], T]) -> T:
        """Run what blocks (the storage, the DNS) in a thread, and hold the lease meanwhile.

        Raises:
            redis.exceptions.LockError: The lease is lost; what the thread does ends unheard.
        """
        task = asyncio.create_task(asyncio.to_thread(work))
        while not (await asyncio.wait([task], timeout=LEASE_S / 5))[0]:
            await self.extend()
        return task.result()

    async def release(self) -> None:
        """Give it back, if it is still held."""
        await self._lock.release()
        await self._registry.ring()

    async def commit(
        self, state: BatchState, *, parts: Sequence[Part] = (), new: Sequence[FileRecord] = (), ttl_s: int,
    ) -> None:  # fmt: skip
        """Write a batch's record, its progress, new parts and new files in one step.

        Args:
            state: With `num_commits` one higher than it was read.
            parts: What was written of the output.
            new: Files to list.
            ttl_s: How long the record is kept after its end.

        Raises:
            LeaseLost: Nothing was written.
        """
        if not await self._registry.write(self, state, parts, new, ttl_s):
            raise LeaseLost(f"batch {self.batch} is with another steward now", self.batch)


def _phase(record: BatchRecord) -> Phase | None:
    """Return what is to be done for a batch that has not ended."""
    phases: dict[str, Phase] = {
        "validating": "validate",
        "in_progress": "feed",
        "finalizing": "finalize",
    }
    return phases.get(record.status)


def _state(info: dict[bytes, bytes]) -> BatchState:
    record = BatchRecord.model_validate_json(info[b"record"])
    is_cancelled = b"cancelling_at" in info
    if is_cancelled and record.status in ("validating", "in_progress"):
        cancelling_at = int(info[b"cancelling_at"])
        record = record.model_copy(update={"cancelling_at": cancelling_at})
    return BatchState(
        record=record,
        progress=Progress.parse(info.get(b"progress", b"{}")),
        is_cancelled=is_cancelled,
        is_announced=b"announced_at" in info,
        num_commits=int(info.get(b"commit", b"0").partition(b"|")[0]),
        runs=int(info.get(b"runs", 0)),
        problem=info.get(b"problem", b"").decode(errors="replace"),
    )
