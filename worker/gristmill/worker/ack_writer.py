"""Write the results of finished requests to Redis, many in one call.

`queue_source.py` runs one `AckWriter` for each queue. Each finished request puts its settlement
into an asyncio queue. One call writes the settlements of 5 ms, at most 64. While Redis is away, the
settlements wait here, so their requests need not run again. If Redis refuses a call for its size,
each settlement goes alone, and one that is refused alone ends as too large.
"""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from gristmill.shared.errors import TooLargeForRedis
from gristmill.shared.operations import Settlement
from gristmill.shared.queue import Queue
from gristmill.shared.redis_retry import MAX_BREAKS, retrying_sized
from gristmill.worker.in_flight import Finished
from gristmill.worker.liveness import Liveness

log = structlog.get_logger()

MAX_ITEMS = 64
"""Most settlements in one call."""

MAX_BYTES = 8 * 2**20
"""Most bytes in one call, of outcomes and of the records that it reads; a larger one goes alone."""

INTERVAL_S = 0.005
"""Seconds to wait for more settlements after the first one."""


class AckWriter:
    """One task that acknowledges the finished requests of one queue.

    Args:
        queue: The queue that gets the records.
        finished: The ended requests to write.
        written: Called with each batch once it is written.
        may_grow: Returns whether more requests may finish soon; if not, the writer does not wait
            for them.
        liveness: Record of how long a write has taken so far; the probes read it.
    """

    def __init__(
        self,
        queue: Queue,
        finished: "asyncio.Queue[Finished]",
        written: Callable[[Sequence[Settlement]], None],
        may_grow: Callable[[], bool],
        liveness: Liveness,
    ) -> None:
        self._queue = queue
        self._finished = finished
        self._written = written
        self._may_grow = may_grow
        self._liveness = liveness

    async def run(self) -> None:
        """Write batches until cancelled."""
        name = self._queue.keys.queue
        structlog.contextvars.bind_contextvars(queue=name)
        carried: Finished | None = None
        while True:
            first = carried or await self._finished.get()
            batch, carried = await self._gather(first)
            self._liveness.write_began(name)
            await self._write(batch)
            self._liveness.write_ended(name)

    async def _write(self, batch: Sequence[Finished]) -> None:
        """Write a batch in one call; if Redis refuses that for its size, each settlement alone."""
        try:
            await self._ack(batch)
        except TooLargeForRedis as refusal:
            if len(batch) > 1:
                for each in batch:
                    await self._write([each])
                return
            (refused,) = batch
            num_bytes = len(refused.settlement.outcome)
            log.error(  # noqa: TRY400  # its message says all
                "result.refused", id=refused.request.id, num_bytes=num_bytes, error=str(refusal)
            )
            await self._ack([refused.request.refused_by_redis(refused)])

    async def _ack(self, batch: Sequence[Finished]) -> None:
        worker, settlements = batch[0].request.worker, [each.settlement for each in batch]
        codes = await retrying_sized(
            lambda: self._queue.ack(worker, settlements),
            sum(len(each.outcome) for each in settlements),
            self._queue.is_answering,
            max_breaks=1 if len(batch) > 1 else MAX_BREAKS,  # alone, it is tried again
        )
        _report(batch, codes)
        self._written(settlements)
        for _ in batch:
            self._finished.task_done()

    async def _gather(self, first: Finished) -> tuple[list[Finished], Finished | None]:
        """Return the ended requests for the next call, and the one left over for the call after it.

        One is left over if it exceeds `MAX_BYTES` or belongs to another worker incarnation.
        """
        batch, num_bytes = [first], first.num_bytes
        if self._finished.empty() and self._may_grow():
            await asyncio.sleep(INTERVAL_S)
        while len(batch) < MAX_ITEMS and not self._finished.empty():
            item = self._finished.get_nowait()
            num_bytes += item.num_bytes
            if num_bytes > MAX_BYTES or item.request.worker != first.request.worker:
                return batch, item
            batch.append(item)
        return batch, None


def _report(batch: Sequence[Finished], codes: Sequence[int]) -> None:
    """Log each settlement that Redis did not store (0), or stored after the lease was lost (2); end the spans."""
    for each, code in zip(batch, codes, strict=True):
        settlement = each.settlement
        if code == 0:
            log.warning("settle.refused", id=settlement.id, delivery=settlement.delivery)
        elif code == 2:
            log.info("settle.late", id=settlement.id, delivery=settlement.delivery)
        if each.request.spans:
            each.request.spans.settled(code=code)
