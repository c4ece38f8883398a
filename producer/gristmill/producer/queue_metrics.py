"""Serve /metrics of gateway and steward, with the series of their queues. So the series exist while no worker lives.

Each scrape reads Redis, for `READ_TIMEOUT_S` at most. So a slow Redis does not fail the scrape.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

import structlog
from prometheus_client import REGISTRY, Metric, generate_latest
from prometheus_client.core import GaugeMetricFamily
from redis.exceptions import RedisError

from gristmill.producer.batches.batch_state import Work
from gristmill.producer.batches.due_batches import DueBatches
from gristmill.shared.backlog import read_backlog
from gristmill.shared.errors import WrongFormat
from gristmill.shared.queue import Queue
from gristmill.shared.queue_series import MAX_AGE_S, QueueSeries

log = structlog.get_logger()

READ_TIMEOUT_S = 2.0
"""Longest wait for Redis in one scrape. Prometheus waits 10 s for the whole answer by default."""

FRESH_S = 2.0
"""Seconds for which scrapes share one read of Redis, a failed one too, so that several scrapers cost no more than one."""


class QueueMetrics:
    """The content of /metrics in a process that serves some queues.

    Args:
        queues: Names of the queues; the first one has the batches.
    """

    def __init__(self, queues: Sequence[str]) -> None:
        self._first = queues[0]
        self._series = QueueSeries(queues)
        self._overdue_s: dict[Work, float] = {}
        self._read_s = self._due_s = float("-inf")
        self._reading = asyncio.Lock()

    async def page(self, queues: Sequence[Queue], due: DueBatches) -> bytes:
        """Return all series of this process and of its queues, in the text format of Prometheus.

        It raises no error of Redis: the queue's series are missing then, and `gristmill_queue_readable` is 0. Calls at
        the same time share one read; they must be of one event loop, or come one after another.

        Args:
            queues: The queues, with their connections.
            due: The batches of the first queue.
        """
        async with self._reading:
            if time.monotonic() - self._read_s > FRESH_S:
                reads = [self._read(queue) for queue in queues]
                await asyncio.gather(*reads, self._read_due(due))
                self._read_s = time.monotonic()
        return generate_latest(REGISTRY) + generate_latest(self)

    def collect(self) -> Iterator[Metric]:
        """Yield the series of the queues."""
        yield from self._series.collect()
        overdue = GaugeMetricFamily(
            "gristmill_batches_overdue_seconds",
            "Longest time that a batch has been due while no steward holds it",
            labels=["queue", "work"],
        )
        if time.monotonic() - self._due_s < MAX_AGE_S:
            for work, seconds in self._overdue_s.items():
                overdue.add_metric([self._first, work], seconds)
        yield overdue

    async def _read(self, queue: Queue) -> None:
        """Read a queue, unless Redis does not answer."""
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                self._series.note(await read_backlog(queue))
        except (RedisError, OSError, WrongFormat) as error:
            name, kind = queue.keys.queue, type(error).__name__
            told = str(error) or f"no answer within {READ_TIMEOUT_S:g} s"
            log.warning("metrics.incomplete", queue=name, error=told, error_type=kind)

    async def _read_due(self, due: DueBatches) -> None:
        """Read the due batches, unless Redis does not answer, which `_read` has logged."""
        with suppress(RedisError, OSError):
            async with asyncio.timeout(READ_TIMEOUT_S):
                self._overdue_s = await due.overdue_s()
                self._due_s = time.monotonic()
