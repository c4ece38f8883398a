"""Report the death of the engine to one queue; `queue_source.py` has one report for its queue."""

from collections.abc import Mapping
from typing import Any

import structlog

from gristmill.shared.queue import Queue
from gristmill.shared.redis_retry import retrying
from gristmill.worker.in_flight import InFlight
from gristmill.worker.lease import Lease

log = structlog.get_logger()


class DeathReport:
    """The report of one engine's death, until the queue has it.

    Args:
        queue: The queue.
        in_flight: The requests of the queue that this worker holds.
    """

    def __init__(self, queue: Queue, in_flight: InFlight) -> None:
        self._queue = queue
        self._in_flight = in_flight
        self._evidence: Mapping[str, Any] | None = None  # not sent yet

    def note(self, evidence: Mapping[str, Any]) -> None:
        """Store the evidence of the death."""
        self._evidence = evidence

    async def send(self, lease: Lease) -> None:
        """Send the stored evidence to the queue; do nothing without it.

        The queue makes suspects of the requests that had started. The worker releases the others.

        Args:
            lease: The lease under which the worker holds the requests.
        """
        if self._evidence is None:
            return
        evidence = self._evidence
        await self._in_flight.finished.join()
        requests = self._in_flight.requests
        await self._in_flight.release([request for request in requests if request.task is None])
        worker = lease.worker
        await self._in_flight.release_unknown(worker)  # of a cancelled claim; they never ran
        await self._make_suspects(worker, evidence)
        self._in_flight.forget([request.claimed for request in requests])
        self._evidence = None

    async def _make_suspects(self, worker: str, evidence: Mapping[str, Any]) -> None:
        moved = -1
        while moved:
            moved, killed = await retrying(lambda: self._queue.crash(worker, evidence))
            for request_id in killed:
                log.error(
                    "request.dead_lettered",
                    queue=self._queue.keys.queue,
                    id=request_id,
                    reason="engine_killed",
                )
