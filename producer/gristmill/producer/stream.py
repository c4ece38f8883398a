"""Submit an iterable of any length a window at a time; `Client.as_completed` and `map` read from it."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from typing import TypeVar

from gristmill.shared.errors import InvalidRequest
from gristmill.shared.request import Request
from gristmill.shared.results import Result
from gristmill.shared.tasks import end

Item = Request | str
Start = Callable[[list[Item]], Awaitable[list["asyncio.Future[Result]"]]]
T = TypeVar("T")

CHUNK = 128
LINGER_S = 0.01


async def chunks(items: Iterable[T] | AsyncIterable[T], size: int) -> AsyncIterator[list[T]]:
    """Group items; a slow asynchronous source is not held back until a group is full."""
    chunk: list[T] = []
    if isinstance(items, AsyncIterable):
        iterator = aiter(items)
        pending: asyncio.Future[T] = asyncio.ensure_future(anext(iterator))
        while True:
            done, _ = await asyncio.wait([pending], timeout=LINGER_S if chunk else None)
            if not done or len(chunk) == size:
                yield chunk
                chunk = []
                continue
            try:
                chunk.append(pending.result())
            except StopAsyncIteration:
                break
            pending = asyncio.ensure_future(anext(iterator))
    else:
        for item in items:
            chunk.append(item)
            if len(chunk) == size:
                yield chunk
                chunk = []
    if chunk:
        yield chunk


class Stream:
    """A window of unfinished requests over an iterable.

    Args:
        items: Requests to submit, or ids that were submitted before.
        window: How many may be submitted and not yet handed out.
        start: Submits a chunk; returns a future for each item.
    """

    def __init__(
        self, items: Iterable[Item] | AsyncIterable[Item], window: int, start: Start
    ) -> None:
        if window < 1:
            raise InvalidRequest(
                f"window is {window}; it is how many requests may be unfinished, 1 or more"
            )
        self._items = items
        self._chunk = max(1, min(CHUNK, window // 4))
        self._slots = asyncio.Semaphore(window)
        self._start = start

    async def in_order(self) -> AsyncIterator[Result]:
        """Yield results in the order of the items."""
        futures: asyncio.Queue[asyncio.Future[Result] | None] = asyncio.Queue()
        pump = asyncio.create_task(self._pump(futures.put_nowait))
        pump.add_done_callback(lambda _: futures.put_nowait(None))
        try:
            while (future := await futures.get()) is not None:
                yield await future
                self._slots.release()
            await pump
        finally:
            await end(pump)

    async def as_completed(self) -> AsyncIterator[Result]:
        """Yield results as they finish."""
        finished: asyncio.Queue[asyncio.Future[Result] | None] = asyncio.Queue()
        num_started, num_yielded = 0, 0

        def started(future: "asyncio.Future[Result]") -> None:
            nonlocal num_started
            num_started += 1
            future.add_done_callback(finished.put_nowait)

        pump = asyncio.create_task(self._pump(started))
        pump.add_done_callback(lambda _: finished.put_nowait(None))
        try:
            while not (pump.done() and num_yielded == num_started):
                future = await finished.get()
                if future is None:
                    await pump
                    continue
                yield future.result()
                num_yielded += 1
                self._slots.release()
        finally:
            await end(pump)

    async def _pump(self, started: Callable[["asyncio.Future[Result]"], None]) -> None:
        async for chunk in chunks(self._items, self._chunk):
            for _ in chunk:
                await self._slots.acquire()
            for future in await self._start(chunk):
                started(future)
