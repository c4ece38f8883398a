"""The lease of one worker on one queue: opened under a new name, and opened anew when it was lost.

`heartbeat.py` renews it. Each lease belongs to a new worker incarnation, whose name no other ever has.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping

import structlog
from ulid import ULID

from gristmill.shared.operations import SchedulingPolicy
from gristmill.shared.queue import Queue
from gristmill.shared.redis_retry import retrying
from gristmill.shared.tasks import end
from gristmill.worker import metrics

log = structlog.get_logger()


def new_worker_name() -> str:
    """Return the name of a new incarnation; no other ever has it."""
    return f"{socket.gethostname()[:48]}-{ULID()}"


class Lease:
    """Registers a worker with one queue, as often as that is needed.

    Args:
        queue: The queue.
        facts: What the worker serves; others see it in `worker:<worker>`.
        scheduling: Order in which the queue is to be worked on; None leaves the queue's own.
        opened: Called with the name of each new incarnation once it is registered.
        lost: Called when a lease was lost; returns how many requests it aborted.

    Attributes:
        worker: Name of the current incarnation; empty while there is no lease.
    """

    def __init__(
        self,
        queue: Queue,
        facts: Mapping[str, str | int],
        scheduling: SchedulingPolicy | None,
        opened: Callable[[str], None],
        lost: Callable[[], int],
    ) -> None:
        self._queue = queue
        self._facts = facts
        self._scheduling = scheduling
        self._opened = opened
        self._lost = lost
        self._changing = asyncio.Lock()
        self._opening: asyncio.Task[None] | None = None
        self.worker = ""

    @property
    def was_opened(self) -> bool:
        """Whether `open` was ever called."""
        return self._opening is not None

    async def open(self) -> None:
        """Open a lease. Cancelling the caller does not stop the registration, so `close` has a lease to close."""
        self._opening = asyncio.create_task(self._register())
        await asyncio.shield(self._opening)

    async def replace(self, worker: str) -> None:
        """Start over under a new name: what the lost lease held has been given to other workers.

        Args:
            worker: The incarnation that lost its lease; nothing happens if it is not the current one.
        """
        async with self._changing:
            if worker != self.worker:
                return
            num_aborted = self._lost()
            queue = self._queue.keys.queue
            log.error("lease.lost", queue=queue, worker=worker, num_held=num_aborted)
            metrics.leases_lost.inc()
            await self.open()

    async def finish_opening(self) -> None:
        """Wait for an opening that is under way: a lease that opened later would stay."""
        if self._opening is not None:
            await self._opening

    async def close(self, hand_back: Callable[[str], Awaitable[None]]) -> str:
        """Close the lease.

        Args:
            hand_back: Hands back what the queue still believes an incarnation to hold; called until
                nothing is left.

        Returns:
            The name of the incarnation that ended.
        """
        async with self._changing:  # from here on, a beat that finds no lease is no news
            worker, self.worker = self.worker, ""
        while not await retrying(lambda: self._queue.deregister(worker)):
            await hand_back(worker)
        return worker

    async def abandon(self) -> None:
        """End an opening that is still under way; a lease that is open runs out by itself."""
        await end(self._opening)

    async def _register(self) -> None:
        """Open a lease under a new name; nothing is claimed under it before it is open."""
        worker = new_worker_name()
        await retrying(lambda: self._queue.register(worker, self._facts, self._scheduling))
        self.worker = worker
        self._opened(worker)
