"""A steward from start to exit: a dispatcher in a thread, RQ's worker in the main one, signals, probes."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import version
from types import FrameType

import structlog
from redis.exceptions import AuthenticationError, AuthorizationError, RedisError

from gristmill.producer.batches.service import Batches
from gristmill.producer.batches.storage import Storage
from gristmill.producer.steward.allowed import allow, queue_of
from gristmill.producer.steward.connection import check_access, rq_connect
from gristmill.producer.steward.dispatcher import Dispatcher
from gristmill.producer.steward.log import NOTICE_S, Notice, route_rq_logs
from gristmill.producer.steward.runner import Function, Runner
from gristmill.producer.steward.schedule import Schedule
from gristmill.producer.steward.settings import StewardSettings
from gristmill.producer.steward.turn import STOP_GRACE_S, Stopped, Turn
from gristmill.producer.steward.worker import StewardWorker
from gristmill.shared.connection import notice_waits
from gristmill.shared.errors import SettingsError
from gristmill.shared.log import configure_logging
from gristmill.shared.probes import ProbeServer
from gristmill.shared.redis_url import redacted

log = structlog.get_logger()

RESTART_S = 1.0
"""Wait before RQ's worker is started again; it ended because Redis did not answer."""

STALL_S = 120.0
"""Time without a sign of life, above any wait for Redis, after which the liveness probe fails."""

EXIT_S = 3.0
"""Longest wait for the dispatcher at the end."""

LEAVE_S = STOP_GRACE_S + 5.0
"""Time from the signal on after which the process ends whatever it waits for: several calls of RQ's
bookkeeping may hang, one after the other, and a process that is gone loses nothing."""

Functions = Callable[[StewardSettings, Turn], Mapping[str, Function]]


class Steward:
    """One steward.

    Args:
        settings: Of this steward.
        functions: What its jobs may be.
    """

    def __init__(self, settings: StewardSettings, functions: Functions) -> None:
        self._settings = settings
        self._turn = Turn()
        self._tell_wait = Notice(redacted(settings.rq_url))
        self._redis = rq_connect(settings.rq_url)
        job_class = allow(Runner(self._turn).functions(functions(settings, self._turn)))
        self._queue = queue_of(self._redis, settings.queue, job_class)
        apart = queue_of(rq_connect(settings.rq_url), settings.queue, job_class)
        self._dispatcher = Dispatcher(settings, Schedule(apart), self._turn, self._tell_wait)

    def run(self) -> int:
        """Work until told to stop; returns the exit code.

        Raises:
            SettingsError: Redis does not let RQ do its work, or the port of the probes is taken.
            redis.exceptions.RedisError: It refuses user or password.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        threading.Thread(target=self._leave_in_time, name="gristmill-exit", daemon=True).start()
        probes = self._open_probes()
        log.info("steward.starting", version=version("gristmill"), health_port=probes.port)
        with suppress(Stopped):
            self._until_redis_answers()
            self._dispatcher.start()
            log.info("steward.started", rq_queue=self._queue.name)
            while not self._turn.is_stopping:
                self._work()
        log.info("steward.stopping")
        self._dispatcher.join(EXIT_S)
        probes.close()
        return 0

    def _stop(self, signum: int, frame: FrameType | None) -> None:
        """Stop while RQ's worker, which handles signals itself, is not there."""
        self._turn.stop()
        raise Stopped

    def _leave_in_time(self) -> None:
        while not self._turn.is_stopping:
            time.sleep(RESTART_S)
        time.sleep(LEAVE_S)
        log.warning("steward.left", reason="Redis did not answer in time; nothing is lost")
        time.sleep(RESTART_S)  # the log is written by a thread
        os._exit(0)

    def _until_redis_answers(self) -> None:
        while True:
            try:
                asyncio.run(self._ping_queue())
                check_access(self._redis)
            except (AuthenticationError, AuthorizationError):
                raise
            except (RedisError, OSError) as error:
                self._wait(error)
            else:
                return

    async def _ping_queue(self) -> None:
        async with Batches.from_settings(self._settings) as batches:
            await batches.queue.redis.ping()

    def _work(self) -> None:
        """Run RQ's worker until it ends: told to stop, or Redis did not answer."""
        try:
            worker = StewardWorker(self._queue, self._turn)
            try:
                worker.work(logging_level="WARNING")
            finally:
                worker.teardown()  # RQ's own comes only once it has begun in full
        except (RedisError, OSError) as error:
            self._wait(error)
        if not self._turn.is_stopping:
            time.sleep(RESTART_S)

    def _wait(self, error: Exception) -> None:
        self._tell_wait(error)
        time.sleep(RESTART_S)

    def _open_probes(self) -> ProbeServer:
        host, port = self._settings.health_host, self._settings.health_port
        try:
            probes = ProbeServer(host, port, {"/healthz": self._stalled_reason})
        except OSError as error:
            message = (
                f"the probes cannot listen on port {port} ({error}); set GRISTMILL_HEALTH_PORT"
            )
            raise SettingsError(message) from error
        probes.start()
        return probes

    def _stalled_reason(self) -> str | None:
        if time.monotonic() - self._dispatcher.last_look_s > STALL_S:
            return "the dispatcher has not looked for a while"
        return "the worker is stuck in a job" if self._turn.overdue_s > STALL_S else None


def run_steward(settings: StewardSettings, functions: Functions) -> int:
    """Run a steward until it is told to stop; returns the exit code.

    Args:
        settings: Of this steward.
        functions: What its jobs may be.
    """
    configure_logging(settings.log_level)
    Storage(settings.storage_url).check()
    route_rq_logs()
    notice_waits(Notice(redacted(settings.redis_url.get_secret_value())), NOTICE_S)
    return Steward(settings, functions).run()
