"""Append the events of streamed answers to Redis, those of all streams in one call.

`queue_source.py` runs one `EventWriter` for each queue. It appends every 30 ms. While Redis is away, it repeats its call,
and the events wait in their buffers, which have a bound. If Redis refuses them, the streams end without a last entry.
Their readers then take what is missing from the results.
"""

import asyncio
import time
from collections.abc import Sequence

import structlog

from gristmill.shared.event_streams import Append
from gristmill.shared.queue import Queue
from gristmill.shared.redis_full import RedisFull
from gristmill.shared.redis_retry import retrying_sized
from gristmill.worker.event_buffers import EventBuffer, EventBuffers

log = structlog.get_logger()

INTERVAL_S = 0.03
"""Seconds from one call to the next; readers see a token at most so much later."""


class EventWriter:
    """One task that appends the events of one queue.

    Args:
        queue: The queue that has the streams.
        buffers: The events to append.
        ttl_ms: Milliseconds for which Redis keeps a stream after its last event.
        max_stream_bytes: Most bytes of one stream.
    """

    def __init__(
        self, queue: Queue, buffers: EventBuffers, ttl_ms: int, max_stream_bytes: int
    ) -> None:
        self._queue = queue
        self._buffers = buffers
        self._ttl_ms = ttl_ms
        self._max_stream_bytes = max_stream_bytes

    async def run(self) -> None:
        """Append events until cancelled."""
        structlog.contextvars.bind_contextvars(queue=self._queue.keys.queue)
        while True:
            await self._buffers.wait()
            began_s = time.monotonic()
            buffers, appends = self._buffers.next_call()
            while appends:
                for buffer, code in zip(buffers, await self._append(appends, buffers), strict=True):
                    buffer.note_code(code)
                buffers, appends = self._buffers.next_call()
            await asyncio.sleep(began_s + INTERVAL_S - time.monotonic())

    async def _append(self, appends: Sequence[Append], buffers: Sequence[EventBuffer]) -> list[int]:
        """Append entries and return their codes; zeros if Redis does not take them."""
        nothing = [0] * len(appends)

        async def attempt() -> list[int]:
            try:
                return await self._queue.events.append(
                    buffers[0].worker, appends, self._ttl_ms, self._max_stream_bytes
                )
            except RedisFull as full:
                log.warning("events.refused", num_streams=len(appends), error=str(full))
                return nothing

        num_bytes = sum(len(each.events) for each in appends)
        try:
            return await retrying_sized(attempt, num_bytes, self._queue.is_answering)
        except Exception as error:
            log.exception("events.refused", num_streams=len(appends), error=str(error))
            return nothing
