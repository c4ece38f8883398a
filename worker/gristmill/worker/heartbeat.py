"""Renew a lease, in a thread with an event loop and a connection of its own.

A 20 MB prompt can hold the worker's loop for seconds; the lease must not depend on it. The same thread
reaps dead workers and expires deadlines, so no separate process has to be alive. It stops renewing when
the worker makes no progress: then its requests go to somebody who does.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog
from redis.exceptions import RedisError

from gristmill.shared.errors import LeaseLost
from gristmill.shared.operations import Stats
from gristmill.shared.queue import Queue
from gristmill.worker.liveness import Liveness

log = structlog.get_logger()

STOP_S = 1.0
"""Longest wait for a beat under way; a Redis that does not answer must not hold up the exit."""


@dataclass(frozen=True, slots=True)
class HeartbeatEvents:
    """What the thread tells the worker's loop, each called on that loop.

    Attributes:
        aborted: Ids to abort: cancelled, expired, or finished by somebody else.
        lost: The lease is gone.
        in_flight_counted: How many requests the queue believes that this worker holds.
        stats_read: One view of the queue, after each beat.
    """

    aborted: Callable[[Sequence[str]], None]
    lost: Callable[[str], object]
    in_flight_counted: Callable[[int], None]
    stats_read: Callable[[Stats], None]


class Heartbeat:
    """Renews the lease of one worker on one queue until stopped.

    Args:
        open_queue: Opens a queue on a connection of its own; called in the thread.
        beat_s: Seconds between heartbeats.
        liveness: Whether the worker gets on, and when Redis was last heard.
        events: What to tell the loop that creates this object.
    """

    def __init__(
        self,
        open_queue: Callable[[], Queue],
        beat_s: float,
        liveness: Liveness,
        events: HeartbeatEvents,
    ) -> None:
        self._open_queue = open_queue
        self._beat_s = beat_s
        self._liveness = liveness
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._worker = ""
        self._thread = threading.Thread(target=self._run, name="gristmill-heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to beat, once there is a lease to `follow`."""
        self._thread.start()

    def follow(self, worker: str) -> None:
        """Renew the lease of this incarnation from now on; it is registered."""
        self._worker = worker

    async def stop(self) -> None:
        """End the thread; the lease runs out by itself unless `deregister` closes it."""
        self._stop.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, STOP_S)

    def _run(self) -> None:
        asyncio.run(self._beats())

    async def _beats(self) -> None:
        queue = self._open_queue()
        try:
            while not self._stop.is_set():
                if self._worker:
                    await self._beat(queue)
                await asyncio.to_thread(self._stop.wait, self._beat_s)
        finally:
            await queue.redis.aclose()

    async def _beat(self, queue: Queue) -> None:
        worker = self._worker
        if not self._liveness.is_alive():
            log.error("lease.withheld", worker=worker, reason=self._liveness.stalled_reason())
            return
        try:
            beat = await queue.beat(worker)
            while reaped := await queue.reap():
                log.info("workers.reaped", workers=reaped)
            await queue.expire()
            stats = await queue.stats()
        except LeaseLost:
            self._tell(self._events.lost, worker)
        except (RedisError, OSError) as error:
            log.warning(
                "beat.failed", worker=worker, error=str(error), error_type=type(error).__name__
            )
        else:
            self._liveness.heard_redis()
            if beat.abort:
                self._tell(self._events.aborted, beat.abort)
            self._tell(self._events.in_flight_counted, beat.num_in_flight)
            self._tell(self._events.stats_read, stats)

    def _tell(self, callback: Callable[..., object], value: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, value)
        except RuntimeError:  # the loop is closed: the worker is gone
            self._stop.set()
