"""Read a plain iterable for a client on an event loop; `SyncClient` gives its loop such sources.

A source may be slow, block for ever, call the client, or raise what would end the loop. So each source has a
thread of its own, and its errors come as `SourceFailed`.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from typing import Generic, Self, TypeVar

from gristmill.producer.stream import CHUNK

T = TypeVar("T")


class SourceFailed(Exception):
    """A source raised; the caller of the client gets its error.

    The event loop must not see the error itself: SystemExit would end the loop, and StopAsyncIteration or
    CancelledError would mean something else there.

    Attributes:
        error: What the source raised.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class Pulled(AsyncIterator[T], Generic[T]):
    """Iterate over a plain iterable in a thread; the thread starts with the first item asked for.

    The thread reads up to 128 items ahead. Each item can be taken while the source blocks before the next one.
    The thread is a daemon: a source that blocks does not keep the process alive.

    Args:
        items: The source; only the thread uses it.
    """

    def __init__(self, items: Iterable[T]) -> None:
        self._items = items
        self._given: deque[T] = deque()
        self._error: BaseException | None = None
        self._has_ended = False
        self._is_stopped = False
        self._room = threading.Condition()
        self._news: asyncio.Event | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        news = self._news or self._start()
        while True:
            with self._room:
                if self._given:
                    return self._given.popleft()
                if self._has_ended:
                    break
                self._room.notify()
                news.clear()
            await news.wait()
        if self._error:
            raise SourceFailed(self._error)
        raise StopAsyncIteration

    def stop(self) -> None:
        """End the thread, at the latest when the source gives its next item; any thread may call this."""
        with self._room:
            self._is_stopped = True
            self._room.notify()

    def _start(self) -> asyncio.Event:
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            with suppress(RuntimeError):  # the client was closed, and its loop with it
                loop.call_soon_threadsafe(news.set)

        self._news = news
        threading.Thread(
            target=self._read, args=(tell,), name="gristmill-source", daemon=True
        ).start()
        return news

    def _read(self, tell: Callable[[], None]) -> None:
        error: BaseException | None = None
        try:
            for item in self._items:
                if not self._give(item, tell):
                    return
        except BaseException as raised:  # noqa: BLE001  # the caller gets it
            error = raised
        with self._room:
            self._error = error
            self._has_ended = True
            tell()

    def _give(self, item: T, tell: Callable[[], None]) -> bool:
        """Hand an item on and wait for room; returns whether more items are wanted."""
        with self._room:
            self._given.append(item)
            if len(self._given) == 1:
                tell()
            self._room.wait_for(lambda: self._is_stopped or len(self._given) < CHUNK)
            return not self._is_stopped
