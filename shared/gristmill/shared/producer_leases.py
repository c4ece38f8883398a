"""Hold the leases of producers that are still submitting; `Queue.producers` has these operations."""

from gristmill.shared.redis_types import ScriptRunner

LEASES_OF_A_WORKER = 4
"""Lease of a producer, in leases of a worker. A plain iterable may block the producer's event loop while it reads a
large part of a file, and the producer renews nothing meanwhile."""


class ProducerLeases:
    """The leases of the producers of one queue.

    Args:
        scripts: ScriptRunner of the queue.
        lease_ms: Milliseconds of a worker's lease.

    Attributes:
        lease_ms: Milliseconds after which a producer that is silent counts as dead.
    """

    def __init__(self, scripts: ScriptRunner, lease_ms: int) -> None:
        self._scripts = scripts
        self.lease_ms = LEASES_OF_A_WORKER * lease_ms

    async def hold(self, producer: str) -> int:
        """Open or renew the lease of a producer, and return Redis time in ms.

        Args:
            producer: Unique name of the producer.
        """
        now_ms: int = await self._scripts.run("lease_producer", producer, self.lease_ms)
        return now_ms

    async def end(self, producer: str) -> None:
        """End the lease of a producer that has submitted everything."""
        await self._scripts.run("lease_producer", producer, 0)
