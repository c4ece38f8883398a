"""Tell a waiting client about the workers of its queue: a warning when none lives, the state in an error.

`Waiter` looks while it waits; `Client.wait` asks for the words of its `TimeoutError`.
"""

import asyncio
import time

from redis.exceptions import RedisError

from gristmill.shared.log import warn
from gristmill.shared.pauses import WHOLE_QUEUE, pause_in_words
from gristmill.shared.queue import Queue
from gristmill.shared.queue_stats import Stats, num_live
from gristmill.shared.redis_retry import retrying
from gristmill.shared.redis_trouble import trouble

FIRST_LOOK_S = 2.0
"""Seconds of waiting before the first look; most results are there sooner."""

LOOK_INTERVAL_S = 5.0
"""Seconds between two looks; a look is one script that only reads."""

MAX_NAMED = 3
"""Paused batches that a message names."""

STATE_TIMEOUT_S = 1.0
"""Longest wait for the state of the queue in an error, which is late already."""


class WorkerWatch:
    """Looks for live workers on behalf of one client.

    Args:
        queue: The queue.
        is_quiet: True warns of nothing; for a caller that tells people itself.
    """

    def __init__(self, queue: Queue, *, is_quiet: bool = False) -> None:
        self._queue = queue
        self._is_quiet = is_quiet
        self._warned: str | None = None  # event of the last warning, while its cause lasts
        self._next_look_s = 0.0

    def begin(self) -> None:
        """Note that the client starts to wait now."""
        self._next_look_s = time.monotonic() + FIRST_LOOK_S

    async def look(self) -> None:
        """Warn if the queue is paused or no worker lives, once while that lasts; do nothing if no look is due."""
        if self._is_quiet or time.monotonic() < self._next_look_s:
            return
        stats = await retrying(self._queue.stats)
        self._next_look_s = time.monotonic() + LOOK_INTERVAL_S
        event = None
        if WHOLE_QUEUE in stats.pauses:
            event = "queue.paused"
        elif not num_live(stats.workers):
            event = "workers.missed"
        if event and event != self._warned:
            self._warn(event, stats)
        self._warned = event

    def _warn(self, event: str, stats: Stats) -> None:
        name, counters = self._queue.keys.queue, stats.counters
        queued, in_flight = counters.get("queued", 0), counters.get("in_flight", 0)
        message = f"waiting for results: {state_in_words(name, stats)}"
        warn(event, message, queue=name, queued=queued, in_flight=in_flight)

    async def timeout_message(self, request_id: str, timeout_s: float) -> str:
        """Return the message of the error for a result that did not come in time."""
        return f"result of {request_id} did not come within {timeout_s:g} s: {await self._state()}"

    async def _state(self) -> str:
        try:
            async with asyncio.timeout(STATE_TIMEOUT_S):
                stats = await self._queue.stats()
        except (RedisError, OSError) as error:
            return f"Redis {trouble(error)}; the client still tries"
        return state_in_words(self._queue.keys.queue, stats)


def state_in_words(name: str, stats: Stats) -> str:
    """Return what is in a queue, who serves it, and what to do."""
    counters, num_workers = stats.counters, num_live(stats.workers)
    depth = f"{counters.get('queued', 0):,} queued, {counters.get('in_flight', 0):,} in flight"
    if paused := pause_in_words(name, stats.pauses):
        return f"{depth}, and {paused}"
    batches = [scope.partition(":")[2] for scope in stats.pauses]
    depth += f", paused batches: {', '.join(sorted(batches)[:MAX_NAMED])}" if batches else ""
    if num_workers == 0:
        start = f"start one: gristmill worker --queue {name} -- --model MODEL"
        return f"{depth}, no live worker on queue {name!r}; {start}"
    workers = f"{num_workers:,} live worker{'s' if num_workers > 1 else ''}"
    return f"{depth}, {workers} on queue {name!r}; the request stays in the queue: wait again"
