"""Write the results of finished requests to Redis, many in one call.

`queue_source.py` runs one `AckWriter` for each queue. Each finished request puts its settlement
into an asyncio queue. One call writes the settlements of 5 ms, at most 64. While Redis is away, the
settlements wait here, so their requests need not run again.
"""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from gristmill.shared.operations import Settlement
from gristmill.shared.queue import Queue
from gristmill.shared.redis_retry import retrying

log = structlog.get_logger()

MAX_ITEMS = 64
"""Most settlements in one call."""

MAX_BYTES = 8 * 2**20
"""Most bytes of outcomes in one call; a larger outcome goes alone."""

INTERVAL_S = 0.005
"""Seconds to wait for more settlements after the first one."""

Finished = tuple[str, Settlement]


class AckWriter:
    """One task that acknowledges the finished requests of one queue.

    Args:
        queue: The queue that gets the records.
        finished: The settlements to write, each with the worker incarnation that claimed the request.
        written: Called with each batch once it is written.
        may_grow: Returns whether more requests may finish soon; if not, the writer does not wait
            for them.
    """

    def __init__(
        self,
        queue: Queue,
        finished: "asyncio.Queue[Finished]",
        written: Callable[[Sequence[Settlement]], None],
        may_grow: Callable[[], bool],
    ) -> None:
        self._queue = queue
        self._finished = finished
        self._written = written
        self._may_grow = may_grow

    async def run(self) -> None:
        """Write batches until cancelled."""
        structlog.contextvars.bind_contextvars(queue=self._queue.keys.queue)
        carried: Finished | None = None
        while True:
            first = carried or await self._finished.get()
            batch, carried = await self._gather(first)
            worker = first[0]
            codes = await retrying(lambda w=worker, b=batch: self._queue.ack(w, b))  # type: ignore[misc]  # bound now
            _report(batch, codes)
            self._written(batch)
            for _ in batch:
                self._finished.task_done()

    async def _gather(self, first: Finished) -> tuple[list[Settlement], Finished | None]:
        """Return the settlements for the next call, and the one left over for the call after it.

        One is left over if it exceeds `MAX_BYTES` or belongs to another worker incarnation.
        """
        worker, batch, num_bytes = first[0], [first[1]], len(first[1].outcome)
        if self._finished.empty() and self._may_grow():
            await asyncio.sleep(INTERVAL_S)
        while len(batch) < MAX_ITEMS and not self._finished.empty():
            item = self._finished.get_nowait()
            num_bytes += len(item[1].outcome)
            if num_bytes > MAX_BYTES or item[0] != worker:
                return batch, item
            batch.append(item[1])
        return batch, None


def _report(batch: Sequence[Settlement], codes: Sequence[int]) -> None:
    """Log each settlement that Redis did not store (0), or stored after the lease was lost (2)."""
    for settlement, code in zip(batch, codes, strict=True):
        if code == 0:
            log.warning("settle.refused", id=settlement.id, delivery=settlement.delivery)
        elif code == 2:
            log.info("settle.late", id=settlement.id, delivery=settlement.delivery)
