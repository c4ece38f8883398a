"""Work that a steward does beside RQ's single place: it writes files and calls webhooks.

Such work waits for a storage or for a tenant's server, some of it for a long time. So each tenant has a few places of
its own, and none of it keeps a job waiting. `dispatcher.py` starts what is due.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import structlog
from redis.exceptions import RedisError

from gristmill.producer.batches.batch_state import Work
from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.batches.due_batches import DueBatch
from gristmill.shared.tasks import end

log = structlog.get_logger()

Step = Callable[[BatchStore, str], Coroutine[Any, Any, None]]
"""Function of a kind of work: gets the store and the id of a batch."""


class ConcurrentWork:
    """One kind of work, as many pieces at a time as there are places.

    Args:
        work: The kind of work.
        step: Does one piece; it takes the batch's lease itself.
        max_running: Places of this steward.
        max_a_tenant: Places that one tenant may have.
        timeout_s: Seconds after which a piece is cancelled.
    """

    def __init__(
        self, work: Work, step: Step, *, max_running: int, max_a_tenant: int, timeout_s: float
    ) -> None:
        self._work = work
        self._step = step
        self._max_running = max_running
        self._max_a_tenant = max_a_tenant
        self._timeout_s = timeout_s
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._num_of: Counter[str] = Counter()

    async def start_due(self, store: BatchStore) -> None:
        """Start pieces that are due while there are places."""
        limit = 2 * self._max_running  # some of them run here and have no lease yet
        found = await store.due.batches(
            self._work, max_a_tenant=2 * self._max_a_tenant, limit=limit
        )
        for due_batch in found:
            if len(self._tasks) >= self._max_running:
                return
            has_place = self._num_of[due_batch.tenant] < self._max_a_tenant
            if has_place and due_batch.batch not in self._tasks:
                await store.due.begin(due_batch)
                self._num_of[due_batch.tenant] += 1
                self._tasks[due_batch.batch] = asyncio.create_task(self._run(store, due_batch))

    async def stop(self) -> None:
        """Cancel what runs; another steward does it again."""
        for task in list(self._tasks.values()):
            await end(task)

    async def _run(self, store: BatchStore, due_batch: DueBatch) -> None:
        began_s = time.monotonic()
        facts = {"job": f"{due_batch.phase}-{due_batch.batch}", "batch": due_batch.batch}
        log.info("job.started", **facts)
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._step(store, due_batch.batch)
            log.info("job.finished", duration_s=round(time.monotonic() - began_s, 3), **facts)
        except Exception:
            log.exception("job.failed", **facts)
        finally:
            del self._tasks[due_batch.batch]
            self._num_of[due_batch.tenant] -= 1
            self._num_of += Counter()  # forgets tenants without places
        with suppress(RedisError, OSError):
            await store.due.end(self._work, due_batch.tenant, time.monotonic() - began_s)
