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
from gristmill.producer.batches.batch_store import BatchStore
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
        queues: Names of the queues.
    """

    def __init__(self, queues: Sequence[str]) -> None:
        self._series = QueueSeries(queues)
        self._overdue_s: dict[str, tuple[float, dict[Work, float]]] = {}
        self._read_s = float("-inf")
        self._reading = asyncio.Lock()

    async def page(self, stores: Sequence[BatchStore]) -> bytes:
        """Return all series of this process and of its queues, in the text format of Prometheus.

        It raises no error of Redis: the queue's series are missing then, and `gristmill_queue_readable` is 0. Calls at
        the same time share one read; they must be of one event loop, or come one after another.

        Args:
            stores: The batches of each queue.
        """
        async with self._reading:
            if time.monotonic() - self._read_s > FRESH_S:
                reads = [
                    read
                    for each in stores
                    for read in (self._read(each.queue), self._read_due(each))
                ]
                await asyncio.gather(*reads)
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
        for queue, (read_s, overdue_s) in self._overdue_s.items():
            if time.monotonic() - read_s < MAX_AGE_S:
                for work, seconds in overdue_s.items():
                    overdue.add_metric([queue, work], seconds)
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

    async def _read_due(self, store: BatchStore) -> None:
        """Read the due batches of a queue, unless Redis does not answer, which `_read` has logged."""
        with suppress(RedisError, OSError):
            async with asyncio.timeout(READ_TIMEOUT_S):
                overdue_s = await store.due.overdue_s()
                self._overdue_s[store.queue.keys.queue] = (time.monotonic(), overdue_s)
