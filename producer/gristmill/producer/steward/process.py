"""A steward process from start to exit: dispatcher, RQ's worker, signals, probes.

The dispatcher has its own thread; RQ's worker runs in the main thread.
"""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib.metadata import version
from types import FrameType
from typing import Any

import structlog
from prometheus_client import CONTENT_TYPE_LATEST
from redis.exceptions import RedisError

from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.batches.storage import Storage
from gristmill.producer.noted_queues import note_queue
from gristmill.producer.queue_metrics import QueueMetrics
from gristmill.producer.steward.concurrent_work import ConcurrentWork
from gristmill.producer.steward.dispatcher import Dispatcher
from gristmill.producer.steward.job_registry import JobRegistry
from gristmill.producer.steward.rq_connection import check_access, rq_connect
from gristmill.producer.steward.rq_log import route_rq_logs
from gristmill.producer.steward.rq_queue import JobQueue, rq_queue_of
from gristmill.producer.steward.rq_worker import StewardWorker
from gristmill.producer.steward.settings import StewardSettings
from gristmill.producer.steward.time_slice import STOP_GRACE_S, Stopped
from gristmill.producer.tenant_move import move_tenants
from gristmill.shared.errors import SettingsError
from gristmill.shared.log import configure_logging
from gristmill.shared.probes import ProbeServer, StartResponse
from gristmill.shared.redis_eviction import warn_of_eviction
from gristmill.shared.redis_retry import RedisNotice, announce_redis_waits, is_transient
from gristmill.shared.redis_trouble import error_in_words
from gristmill.shared.tracing import start_tracing

log = structlog.get_logger()

RESTART_S = 1.0
"""Pause before RQ's worker starts again after it lost Redis."""

STALL_S = 120.0
"""Time without progress after which the liveness probe fails; it exceeds any wait for Redis."""

EXIT_S = 3.0
"""Longest wait for the dispatcher when the process ends."""

LEAVE_S = STOP_GRACE_S + 5.0
"""Time from the signal until the process ends by force. Several of RQ's calls may hang, one after
the other. A process that ends in the middle of them loses nothing."""


class Steward:
    """One steward process.

    Args:
        settings: The steward's settings.
        registry: RQ's jobs that it may run.
        works: The kinds of work that run beside them.
    """

    def __init__(
        self, settings: StewardSettings, registry: JobRegistry, works: Sequence[ConcurrentWork]
    ) -> None:
        self._settings = settings
        self._time_slice = registry.time_slice
        self._notice_wait = RedisNotice(settings.rq_url)
        self._is_started = False
        self._metrics = QueueMetrics([settings.queue])
        self._scraping = threading.Lock()  # scrapes at the same time take the figures of the first
        self._redis = rq_connect(settings.rq_url)
        self._queue = rq_queue_of(self._redis, settings.queue, registry.job_class)
        separate = rq_queue_of(rq_connect(settings.rq_url), settings.queue, registry.job_class)
        self._dispatcher = Dispatcher(
            settings, JobQueue(separate), self._time_slice, self._notice_wait, works
        )

    def run(self) -> int:
        """Work until a signal stops the process; returns the exit code.

        Raises:
            SettingsError: Redis does not allow RQ's commands, or the port of the probes is taken.
            RedisUnreachable: Redis refuses the login or a command.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        threading.Thread(target=self._leave_in_time, name="gristmill-exit", daemon=True).start()
        probes = self._open_probes()
        log.info("steward.starting", version=version("gristmill"), health_port=probes.port)
        with suppress(Stopped):
            self._until_redis_answers()
            self._dispatcher.start()
            self._is_started = True
            log.info("steward.started", rq_queue=self._queue.name)
            while not self._time_slice.is_stopping:
                self._work()
        log.info("steward.stopping")
        self._dispatcher.join(EXIT_S)
        probes.close()
        return 0

    def _stop(self, signum: int, frame: FrameType | None) -> None:
        """Handle a signal while RQ's worker, which handles signals itself, does not run."""
        self._time_slice.stop()
        raise Stopped

    def _leave_in_time(self) -> None:
        while not self._time_slice.is_stopping:
            time.sleep(RESTART_S)
        time.sleep(LEAVE_S)
        log.warning("steward.left", reason="Redis did not answer in time; nothing is lost")
        time.sleep(RESTART_S)  # a thread writes the log
        os._exit(0)

    def _until_redis_answers(self) -> None:
        settings = self._settings
        self._until_answered(settings.redis_url.get_secret_value(), "REDIS_URL", self._ask_queue)
        rq_setting = "RQ_REDIS_URL" if settings.rq_redis_url else "REDIS_URL"
        self._until_answered(settings.rq_url, rq_setting, lambda: check_access(self._redis))

    def _until_answered(self, url: str, setting: str, ask: Callable[[], object]) -> None:
        """Repeat a question until the Redis of a URL answers; raise in words what waiting cannot end."""
        while True:
            try:
                ask()
            except (RedisError, OSError) as error:
                if not is_transient(error):
                    raise error_in_words(error, url, setting) from None
                self._wait(error)
            else:
                return

    def _ask_queue(self) -> None:
        asyncio.run(self._read_stats())

    async def _read_stats(self) -> None:
        async with BatchStore.from_settings(self._settings) as store:
            await warn_of_eviction(store.queue.redis, self._settings.redis_url.get_secret_value())
            await store.queue.stats()  # it needs rights that PING does not, and checks the format
            await move_tenants(store.queue.redis, self._settings.queue)
            await note_queue(store.queue.redis, self._settings.queue)

    def _work(self) -> None:
        """Run RQ's worker until a signal stops it or Redis does not answer."""
        try:
            worker = StewardWorker(self._queue, self._time_slice)
            try:
                worker.work(logging_level="WARNING")
            finally:
                worker.teardown()  # RQ calls it only after a complete start
        except (RedisError, OSError) as error:
            self._wait(error)
        if not self._time_slice.is_stopping:
            time.sleep(RESTART_S)

    def _wait(self, error: Exception) -> None:
        self._notice_wait(error)
        time.sleep(RESTART_S)

    def _open_probes(self) -> ProbeServer:
        host, port = self._settings.health_host, self._settings.health_port
        try:
            probes = ProbeServer(
                host, port, {"/healthz": self._stalled_reason, "/readyz": self._unready_reason},
                {"/metrics": self._show_metrics},
            )  # fmt: skip
        except OSError as error:
            message = (
                f"the probes cannot listen on port {port} ({error}); set GRISTMILL_HEALTH_PORT"
            )
            raise SettingsError(message) from error
        probes.start()
        return probes

    def _show_metrics(self, _: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Answer a scrape as a WSGI application, over a connection of its own: the dispatcher may hang."""
        with self._scraping:
            page = asyncio.run(self._metrics_page())
        start_response("200 OK", [("Content-Type", CONTENT_TYPE_LATEST)])
        return [page]

    async def _metrics_page(self) -> bytes:
        async with BatchStore.from_settings(self._settings) as store:
            return await self._metrics.page([store])

    def _unready_reason(self) -> str | None:
        return self._stalled_reason() if self._is_started else "Redis has not answered yet"

    def _stalled_reason(self) -> str | None:
        if time.monotonic() - self._dispatcher.last_look_s > STALL_S:
            return "the dispatcher has not looked for a while"
        return "the worker is stuck in a job" if self._time_slice.overdue_s > STALL_S else None


def run_steward(
    settings: StewardSettings, registry: JobRegistry, works: Sequence[ConcurrentWork]
) -> int:
    """Run a steward until a signal stops it; returns the exit code.

    Args:
        settings: The steward's settings.
        registry: RQ's jobs that it may run.
        works: The kinds of work that run beside them.
    """
    configure_logging(settings.log_level)
    Storage(settings.storage_url).check()
    route_rq_logs()
    announce_redis_waits(settings.redis_url.get_secret_value())
    tracing = start_tracing("gristmill-steward")
    try:
        return Steward(settings, registry, works).run()
    finally:
        if tracing:
            tracing.stop()
