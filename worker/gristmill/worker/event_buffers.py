"""Hold the events of streamed answers until they are in Redis. The engine adds them, `event_writer.py` appends them.

Nothing here waits, so a slow Redis does not hold up the engine. A stream whose events wait too long ends with
`stream_too_slow` instead, and one that gets too long with `stream_too_long`. Its request runs on to its result.
"""

import asyncio
from collections import deque
from collections.abc import Sequence

import structlog

from gristmill.shared.event_streams import Append
from gristmill.shared.records import Claimed

log = structlog.get_logger()

MAX_BUFFERED_BYTES = 64 * 2**20
"""Most bytes of events of one queue that wait for Redis; a stream that adds more ends as too slow."""

MAX_STREAMS = 128
"""Most streams in one call, so that the script takes a few milliseconds."""

MAX_CALL_BYTES = 256 * 2**10
"""Bytes after which a call takes no further events; one event always fits."""

TOO_SLOW = "stream_too_slow"

_FAILED = {2: "stream_too_long", 3: "stream_has_foreign_entries"}
"""Codes of `EventStreams.append` that end a stream, and what the log calls them."""


class EventBuffer:
    """The events of one delivery that are not in Redis yet.

    Attributes:
        claimed: The request.
        worker: The worker incarnation that holds it.
        has_events: True once the answer has had an event.
    """

    def __init__(
        self, claimed: Claimed, worker: str, buffers: "EventBuffers", max_bytes: int
    ) -> None:
        self.claimed = claimed
        self.worker = worker
        self.has_events = False
        self._buffers = buffers
        self._max_bytes = max_bytes
        self._events: deque[bytes] = deque()
        self._num_bytes = 0
        self._number = 0
        self._ending = ""
        self._is_open = True
        self._written = asyncio.Event()

    @property
    def is_waiting(self) -> bool:
        """True while something waits to be appended."""
        return bool(self._events or self._ending)

    def add(self, event: bytes) -> None:
        """Add one event; if too many bytes wait, drop them and end the stream as too slow."""
        if not self._is_open:
            return
        self.has_events = True
        self._events.append(event)
        self._num_bytes += len(event)
        if not self._buffers.note_added(self, len(event)) or self._num_bytes > self._max_bytes:
            log.warning("stream.failed", id=self.claimed.id, reason=TOO_SLOW)
            self._is_open = False
            self._drop()
            self._ending = TOO_SLOW

    async def finish(self, ending: str) -> None:
        """Append what waits and how the answer ended; return when Redis has it, or will never have it.

        Args:
            ending: `succeeded` or `failed`.
        """
        if self._is_open:
            self._is_open = False
            self._ending = ending
            self._buffers.note_added(self, 0)
        if self.is_waiting:
            self._written.clear()
            await self._written.wait()

    def close(self) -> None:
        """Drop what waits; nothing is appended any more."""
        self._is_open = False
        self._drop()
        self._ending = ""
        self._written.set()

    def pop_entry(self, max_bytes: int) -> tuple[Append, int]:
        """Remove the next entry; returns it with its number of bytes.

        Args:
            max_bytes: Bytes after which the entry takes no further events.
        """
        taken = [self._events.popleft()] if self._events else []
        num_bytes = sum(map(len, taken))
        while self._events and num_bytes + len(self._events[0]) <= max_bytes:
            taken.append(self._events.popleft())
            num_bytes += len(taken[-1])
        self._count_out(num_bytes)
        self._number += 1
        ending = ""
        if not self._events:
            ending, self._ending = self._ending, ""
        return Append(self.claimed, self._number, b"".join(taken), ending), num_bytes

    def note_code(self, code: int) -> None:
        """Note the code of the entry that `pop_entry` returned last; see `EventStreams.append`."""
        if reason := _FAILED.get(code):
            log.warning("stream.failed", id=self.claimed.id, reason=reason)
        if code != 1:
            self.close()
        elif not self.is_waiting:
            self._written.set()

    def _drop(self) -> None:
        self._count_out(self._num_bytes)
        self._events.clear()

    def _count_out(self, num_bytes: int) -> None:
        self._num_bytes -= num_bytes
        self._buffers.note_removed(num_bytes)


class EventBuffers:
    """The streams of one queue.

    Args:
        max_stream_bytes: Most bytes of one stream.

    Attributes:
        num_bytes: Bytes of events that wait.
    """

    def __init__(self, max_stream_bytes: int) -> None:
        self.num_bytes = 0
        self._max_stream_bytes = max_stream_bytes
        self._waiting: dict[EventBuffer, None] = {}
        self._has_waiting = asyncio.Event()

    def open(self, claimed: Claimed, worker: str) -> EventBuffer:
        """Return the buffer of a request's answer."""
        return EventBuffer(claimed, worker, self, self._max_stream_bytes)

    def note_added(self, buffer: EventBuffer, num_bytes: int) -> bool:
        """Note that a buffer has got something to append; returns False if too many bytes wait."""
        self.num_bytes += num_bytes
        self._waiting[buffer] = None
        self._has_waiting.set()
        return self.num_bytes <= MAX_BUFFERED_BYTES

    def note_removed(self, num_bytes: int) -> None:
        """Note that so many bytes wait no more."""
        self.num_bytes -= num_bytes

    async def wait(self) -> None:
        """Wait until some buffer has something to append."""
        await self._has_waiting.wait()

    def next_call(self) -> tuple[Sequence[EventBuffer], Sequence[Append]]:
        """Take the entries of one call, all of one worker incarnation; empty if nothing waits."""
        buffers, appends, num_bytes = list[EventBuffer](), list[Append](), 0
        for buffer in list(self._waiting):
            if len(appends) == MAX_STREAMS or num_bytes >= MAX_CALL_BYTES:
                break
            if buffer.is_waiting and buffers and buffer.worker != buffers[0].worker:
                continue
            del self._waiting[buffer]
            if buffer.is_waiting:
                append, size = buffer.pop_entry(MAX_CALL_BYTES - num_bytes)
                num_bytes += size
                buffers.append(buffer)
                appends.append(append)
            if buffer.is_waiting:
                self._waiting[buffer] = None  # its turn comes again after the others
        if not self._waiting:
            self._has_waiting.clear()
        return buffers, appends
