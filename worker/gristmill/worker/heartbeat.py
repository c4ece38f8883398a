"""Renew a lease, in a separate thread that has its own event loop and Redis connection.

A 20 MB prompt can block the worker's event loop for seconds, and the lease must not end because of
it. The same thread reaps dead workers and expires requests past their deadline, so no separate
process is needed. The workers of a queue take turns with that, and share the view of the queue that
each turn stores, so its cost does not grow with the fleet. The thread stops renewing the lease while
the worker's event loop makes no progress. Then the queue gives the requests to other workers.
"""

import asyncio
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog
from redis.exceptions import RedisError

from gristmill.shared.brakes import Brake
from gristmill.shared.errors import LeaseLost, WrongFormat
from gristmill.shared.keys import Keys
from gristmill.shared.queue import Queue
from gristmill.shared.queue_brakes import write_brake
from gristmill.shared.queue_stats import Stats, moved_in_words
from gristmill.shared.redis_trouble import remedy
from gristmill.worker.liveness import Liveness
from gristmill.worker.load_report import LoadReport
from gristmill.worker.other_models import OtherModels

log = structlog.get_logger()

UPKEEP_SHARE = 0.9
"""Time between two turns of upkeep of a queue, as a share of the time between two heartbeats of one worker.
Below 1, the worker that had the last turn has the next one too if no other is due earlier. So the requests
of a dead worker can be claimed within its lease and one heartbeat."""

LOOK_BEATS = 20
"""Heartbeats between two looks at what other workers serve."""

STOP_S = 1.0
"""Most seconds to wait for a running heartbeat, because a silent Redis must not delay the exit."""


@dataclass(frozen=True, slots=True)
class HeartbeatEvents:
    """Callbacks from the heartbeat's thread to the worker; each runs on the worker's event loop.

    Attributes:
        aborted: Gets the ids to abort: cancelled, expired, or finished by another worker.
        lost: Gets the incarnation that lost its lease.
        in_flight_counted: Gets the queue's count of the requests that this worker holds.
        stats_read: Gets one view of the queue after each heartbeat, at most one heartbeat old.
    """

    aborted: Callable[[Sequence[str]], None]
    lost: Callable[[str], object]
    in_flight_counted: Callable[[int], None]
    stats_read: Callable[[Stats], None]


class Heartbeat:
    """Renews the lease of one worker on one queue until stopped.

    Args:
        open_queue: Opens the queue on a new connection; called in the heartbeat's thread.
        beat_s: Seconds between heartbeats.
        liveness: Says whether the worker makes progress; the heartbeat notes each answer of Redis
            there.
        events: Callbacks, run on the event loop that creates this object.
        others: Looks at the other workers of the queue after some heartbeats.
        load_report: Has what the engine does, which each heartbeat sends.
    """

    def __init__(
        self,
        open_queue: Callable[[], Queue],
        beat_s: float,
        liveness: Liveness,
        events: HeartbeatEvents,
        *,
        others: OtherModels,
        load_report: LoadReport,
    ) -> None:
        self._open_queue = open_queue
        self._beat_s = beat_s
        self._upkeep_ms = max(1, int(beat_s * 1000 * UPKEEP_SHARE))
        self._num_beats = 0
        self._liveness = liveness
        self._events = events
        self._others = others
        self._load_report = load_report
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._worker = ""
        self._shown: tuple[str, Brake | None] = ("", None)  # worker and brake that Redis has
        self._thread = threading.Thread(target=self._run, name="gristmill-heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread; it sends heartbeats once `follow` has named a lease."""
        self._thread.start()

    def follow(self, worker: str) -> None:
        """Renew the lease of this registered incarnation from now on."""
        self._worker = worker

    async def stop(self) -> None:
        """End the thread; the lease expires unless `deregister` closes it."""
        self._stop.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, STOP_S)

    def _run(self) -> None:
        asyncio.run(self._beats())

    async def _beats(self) -> None:
        queue = self._open_queue()
        # The workers of a fleet may start at the same moment; a random first pause spreads their beats.
        pause_s = self._beat_s * random.random()  # noqa: S311  # no secret
        try:
            while not self._stop.is_set():
                if self._worker:
                    await self._beat_or_report(queue)
                await asyncio.to_thread(self._stop.wait, pause_s)
                pause_s = self._beat_s
        finally:
            await queue.redis.aclose()

    async def _beat_or_report(self, queue: Queue) -> None:
        """Send one heartbeat. An unknown error must not end the thread, or the lease would end for good.

        A worker whose heartbeats all fail counts as cut off from Redis, so its probes fail.
        """
        try:
            await self._beat(queue)
        except Exception:
            log.exception("beat.broken", worker=self._worker)

    async def _beat(self, queue: Queue) -> None:
        worker = self._worker
        if not self._liveness.is_alive():
            log.error("lease.withheld", worker=worker, reason=self._liveness.stalled_reason())
            return
        try:
            beat = await queue.beat(worker, self._load_report.note, self._upkeep_ms)
            stats = await _kept_up(queue) if beat.has_turn else beat.view
            await self._show_brake(queue, worker, beat.now_ms)
            if self._num_beats % LOOK_BEATS == 0:
                await self._others.look(queue, worker)
            self._num_beats += 1
        except LeaseLost:
            self._tell(self._events.lost, worker)
        except (RedisError, OSError, WrongFormat) as error:
            log.warning(
                "beat.failed",
                worker=worker,
                error=str(error),
                error_type=type(error).__name__,
                remedy=remedy(error),
            )
        else:
            self._liveness.heard_redis()
            if beat.abort:
                self._tell(self._events.aborted, beat.abort)
            self._tell(self._events.in_flight_counted, beat.num_in_flight)
            if stats:
                self._note_wrong_types(queue.keys, stats)
                self._tell(self._events.stats_read, stats)

    async def _show_brake(self, queue: Queue, worker: str, now_ms: int) -> None:
        """Write to the queue whether the worker is braked, if that has changed."""
        brake = self._liveness.brake or self._liveness.lease_brakes.get(queue.keys.queue)
        if (worker, brake) == self._shown or (self._shown[0] != worker and brake is None):
            return
        await write_brake(
            queue.redis, queue.keys, worker, brake, now_ms=now_ms, lease_ms=queue.limits.lease_ms
        )
        self._shown = (worker, brake)

    def _note_wrong_types(self, keys: Keys, stats: Stats) -> None:
        """Make the worker unready while keys of the queue are there that had a wrong type."""
        known, words = self._liveness.wrong_types, moved_in_words(keys, stats.wrong_types)
        if words and words != known.get(keys.queue):
            log.error("keys.moved_away", queue=keys.queue, error=words)
        known[keys.queue] = words

    def _tell(self, callback: Callable[..., object], value: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, value)
        except RuntimeError:  # the loop is closed: the worker has ended
            self._stop.set()


async def _kept_up(queue: Queue) -> Stats:
    """Reap dead workers, expire requests, and store and return a view of the queue."""
    while reaped := await queue.reap():
        log.info("workers.reaped", workers=reaped)
    await queue.expire()
    return await queue.stats(is_stored=True)
