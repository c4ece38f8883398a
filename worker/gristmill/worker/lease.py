"""Open and close the lease of one worker on one queue, and replace it after a loss.

`heartbeat.py` renews it. Each lease belongs to a new worker incarnation with a unique name.
"""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Mapping

import structlog
from ulid import ULID

from gristmill.shared.operations import SchedulingPolicy
from gristmill.shared.queue import Queue
from gristmill.shared.redis_retry import retrying
from gristmill.shared.tasks import end
from gristmill.worker import metrics
from gristmill.worker.lease_losses import LeaseLosses

log = structlog.get_logger()


def new_worker_name() -> str:
    """Return a unique name for a new incarnation: host name and ULID."""
    return f"{socket.gethostname()[:48]}-{ULID()}"


class Lease:
    """Registers a worker with one queue, and again after each loss of the lease.

    Args:
        queue: The queue.
        facts: Facts about what the worker serves; other clients read them in `worker:<worker>`.
        scheduling: Order in which claims take requests from the queue; None keeps the queue's
            order.
        losses: Record of the losses of this lease.
        opened: Called with the name of each new incarnation once it is registered.
        lost: Called after a loss of the lease; returns how many requests it aborted.

    Attributes:
        worker: Name of the current incarnation; empty while there is no lease.
    """

    def __init__(
        self,
        queue: Queue,
        facts: Mapping[str, str | int],
        scheduling: SchedulingPolicy | None,
        *,
        losses: LeaseLosses,
        opened: Callable[[str], None],
        lost: Callable[[], int],
    ) -> None:
        self._queue = queue
        self._facts = facts
        self._scheduling = scheduling
        self._losses = losses
        self._opened = opened
        self._lost = lost
        self._changing = asyncio.Lock()
        self._opening: asyncio.Task[None] | None = None
        self.worker = ""

    @property
    def was_opened(self) -> bool:
        """True once `open` was called."""
        return self._opening is not None

    async def open(self) -> None:
        """Open a lease.

        A cancelled caller does not stop the registration, so `close` always has a lease to close.
        """
        self._opening = asyncio.create_task(self._register())
        await asyncio.shield(self._opening)

    async def replace(self, worker: str) -> None:
        """Open a new lease under a new name; other workers may have the lost lease's requests.

        Args:
            worker: The incarnation that lost its lease; nothing happens if it is not the current one.
        """
        async with self._changing:
            if worker != self.worker:
                return
            num_aborted = self._lost()
            queue = self._queue.keys.queue
            self._losses.note(time.monotonic())
            log.error(
                "lease.lost",
                queue=queue,
                worker=worker,
                num_held=num_aborted,
                num_losses=self._losses.number,
                no_suspects_s=self._losses.pause_s,
            )
            metrics.leases_lost.inc()
            await self.open()

    async def finish_opening(self) -> None:
        """Wait for a running `open`, so that no lease opens after `close`."""
        if self._opening is not None:
            await self._opening

    async def close(self, release_unknown: Callable[[str], Awaitable[None]]) -> str:
        """Close the lease.

        Args:
            release_unknown: Releases the requests that the queue still counts for an incarnation;
                called until the queue counts none.

        Returns:
            The name of the incarnation that ended.
        """
        async with self._changing:  # without a name, `replace` ignores a late loss of this lease
            worker, self.worker = self.worker, ""
        while not await retrying(lambda: self._queue.deregister(worker)):
            await release_unknown(worker)
        return worker

    async def abandon(self) -> None:
        """Cancel a running `open`; a lease that is already open expires by itself."""
        await end(self._opening)

    async def _register(self) -> None:
        """Register under a new name, then set `worker`, so that no claim uses the name too early."""
        worker = new_worker_name()
        await retrying(lambda: self._queue.register(worker, self._facts, self._scheduling))
        self.worker = worker
        self._opened(worker)
