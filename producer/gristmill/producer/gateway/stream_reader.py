"""Read the streams of all open calls of a process, with one call of Redis for all of them.

A live stream (`live_stream.py`) follows the stream of its request here. The reader asks Redis again as soon as a
stream's entries are taken, so a slow client holds up nobody and fills no memory.
"""

import asyncio
from collections.abc import Callable, Sequence

import structlog
from redis.exceptions import ResponseError

from gristmill.shared.chunking import chunks
from gristmill.shared.event_streams import START, Entry
from gristmill.shared.queue import Queue
from gristmill.shared.redis_retry import is_transient
from gristmill.shared.tasks import end

log = structlog.get_logger()

INTERVAL_S = 0.025
"""Seconds between two reads, so that one read serves the events of many streams."""

PAUSE_S = 1.0
"""Seconds to wait after an error of Redis."""

STREAMS_A_READ = 500
"""Most streams in one read."""


class Following:
    """The stream of one request, as one call reads it.

    Args:
        request_id: Id of the request.
        wake: Called when entries have come, or the error that ends the reading.

    Attributes:
        position: Position of the last entry that came.
        error: Error that ends the reading; None while it goes on.
    """

    def __init__(self, request_id: str, wake: Callable[[], None]) -> None:
        self.request_id = request_id
        self.position = START
        self.error: Exception | None = None
        self._wake = wake
        self._entries: list[Entry] = []

    @property
    def is_hungry(self) -> bool:
        """True once all entries that came are taken."""
        return not self._entries

    def take(self) -> Sequence[Entry]:
        """Return the entries that have come since the last call."""
        taken, self._entries = self._entries, []
        return taken

    def give(self, entries: Sequence[Entry]) -> None:
        """Add the next entries."""
        self._entries = [*self._entries, *entries]
        self.position = entries[-1].position
        self._wake()

    def fail(self, error: Exception) -> None:
        """End the reading."""
        self.error = error
        self._wake()


class StreamReader:
    """Reads the streams that calls follow.

    Args:
        queue: The queue that has the streams.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._followings: dict[str, list[Following]] = {}
        self._has_some = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None

    def follow(self, request_id: str, wake: Callable[[], None]) -> Following:
        """Begin to read a stream from its start; `leave` ends it."""
        following = Following(request_id, wake)
        self._followings.setdefault(request_id, []).append(following)
        self._has_some.set()
        if self._reading is None:
            self._reading = asyncio.create_task(self._run(), name="gristmill-streams")
        return following

    def leave(self, following: Following) -> None:
        """Read a stream no more for a call."""
        others = self._followings[following.request_id]
        others.remove(following)
        if not others:
            del self._followings[following.request_id]
        if not self._followings:
            self._has_some.clear()

    async def aclose(self) -> None:
        """Stop reading."""
        if self._reading:
            await end(self._reading)

    async def _run(self) -> None:
        while True:
            await self._has_some.wait()
            try:
                for some in chunks(self._hungry(), STREAMS_A_READ):
                    await self._read_or_fail(some)
            except Exception as error:  # noqa: BLE001  # whatever it is, nobody may wait for ever
                log.warning("streams.not_read", error=repr(error)[:500])
                if not is_transient(error):
                    self._fail_all(error)
                await asyncio.sleep(PAUSE_S)
            await asyncio.sleep(INTERVAL_S)

    def _hungry(self) -> list[Following]:
        """Return a following of each stream: those of one stream at different positions take turns."""
        hungry = []
        for followings in self._followings.values():
            waiting = [each for each in followings if each.is_hungry and not each.error]
            if waiting:
                hungry.append(min(waiting, key=lambda each: _number(each.position)))
        return hungry

    async def _read_or_fail(self, followings: Sequence[Following]) -> None:
        """Read streams; one that is refused is looked for by halves, so that it fails alone."""
        try:
            await self._read(followings)
        except ResponseError as error:
            if is_transient(error):
                raise
            if middle := len(followings) // 2:
                await self._read_or_fail(followings[:middle])
                await self._read_or_fail(followings[middle:])
                return
            request_id = followings[0].request_id
            log.warning("stream.not_read", id=request_id, error=repr(error)[:500])
            for each in self._followings.get(request_id, ()):
                each.fail(error)

    async def _read(self, followings: Sequence[Following]) -> None:
        positions = {each.request_id: each.position for each in followings}
        found = await self._queue.events.read(positions)
        for request_id, entries in found.items():
            for each in self._followings.get(request_id, ()):
                if each.is_hungry and each.position == positions[request_id]:
                    each.give(entries)

    def _fail_all(self, error: Exception) -> None:
        for followings in self._followings.values():
            for each in followings:
                each.fail(error)


def _number(position: str) -> tuple[int, int]:
    delivery, _, number = position.partition("-")
    return int(delivery), int(number)
