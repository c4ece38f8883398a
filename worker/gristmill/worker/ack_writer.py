"""Write terminal records in small batches, and keep them until they are written.

The loop hands over each finished request; up to 64 of them, or what came within 5 ms, go in one call.
While Redis is away they wait here: nothing that the engine finished is computed twice.
"""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from gristmill.shared.connection import retrying
from gristmill.shared.operations import Settlement
from gristmill.shared.queue import Queue

log = structlog.get_logger()

MAX_ITEMS = 64
MAX_BYTES = 8 * 2**20
INTERVAL_S = 0.005


class Settler:
    """One task that acknowledges finished requests.

    Args:
        queue: Where the records go.
        settled: Told what is written, so that the loop forgets them.
        may_grow: Whether more may finish soon; if not, nothing waits for company.
    """

    def __init__(
        self,
        queue: Queue,
        settled: Callable[[Sequence[Settlement]], None],
        may_grow: Callable[[], bool],
    ) -> None:
        self._queue = queue
        self._settled = settled
        self._may_grow = may_grow
        self._finished: asyncio.Queue[tuple[str, Settlement]] = asyncio.Queue()
        self.num_pending = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def settle(self, worker: str, settlement: Settlement) -> None:
        """Take over a finished request.

        Args:
            worker: The incarnation that claimed it.
            settlement: What to write.
        """
        self.num_pending += 1
        self._idle.clear()
        self._finished.put_nowait((worker, settlement))

    async def flushed(self) -> None:
        """Wait until everything handed over is written."""
        await self._idle.wait()

    async def run(self) -> None:
        """Write batches until cancelled."""
        structlog.contextvars.bind_contextvars(queue=self._queue.keys.queue)
        carried: tuple[str, Settlement] | None = None
        while True:
            first = carried or await self._finished.get()
            batch, carried = await self._gather(first)
            worker = first[0]
            codes = await retrying(lambda w=worker, b=batch: self._queue.ack(w, b))  # type: ignore[misc]  # bound now
            self._report(batch, codes)
            self._settled(batch)
            self.num_pending -= len(batch)
            if self.num_pending == 0:
                self._idle.set()

    async def _gather(
        self, first: tuple[str, Settlement]
    ) -> tuple[list[Settlement], tuple[str, Settlement] | None]:
        """Collect what came within the interval; returns it and one that did not fit."""
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

    def _report(self, batch: Sequence[Settlement], codes: Sequence[int]) -> None:
        for settlement, code in zip(batch, codes, strict=True):
            if code == 0:
                log.warning("settle.refused", id=settlement.id, delivery=settlement.delivery)
            elif code == 2:
                log.info("settle.late", id=settlement.id, delivery=settlement.delivery)
