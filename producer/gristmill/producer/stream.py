"""Submit an iterable of any length a window at a time; `Client.as_completed` and `map` read from it."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from itertools import islice
from typing import Generic, TypeVar

from gristmill.producer.arguments import check_window
from gristmill.shared.results import Result
from gristmill.shared.tasks import end

T = TypeVar("T")
Start = Callable[[list[T]], Awaitable[list["asyncio.Future[Result]"]]]

CHUNK = 128
"""Items that are started together at most."""

LINGER_S = 0.01
"""Longest wait of a group for its next item; longer would delay the first result of a slow source."""


async def grouped(items: Iterable[T] | AsyncIterable[T], size: int) -> AsyncIterator[list[T]]:
    """Group items; a slow asynchronous source is not held back until a group is full."""
    if isinstance(items, AsyncIterable):
        async for group in _grouped_as_they_come(aiter(items), size):
            yield group
        return
    iterator = iter(items)
    while group := list(islice(iterator, size)):
        yield group


async def _grouped_as_they_come(items: AsyncIterator[T], size: int) -> AsyncIterator[list[T]]:
    """Yield a group when it is full, or when the next item takes longer than `LINGER_S`."""
    group: list[T] = []
    pending: asyncio.Future[T] = asyncio.ensure_future(anext(items))
    while True:
        done, _ = await asyncio.wait([pending], timeout=LINGER_S if group else None)
        if not done or len(group) == size:
            yield group
            group = []
            continue
        try:
            group.append(pending.result())
        except StopAsyncIteration:
            break
        pending = asyncio.ensure_future(anext(items))
    if group:
        yield group


class Stream(Generic[T]):
    """A window of unfinished requests over an iterable.

    Args:
        items: Requests to submit, or ids that were submitted before.
        window: Items that may be started and not yet handed out, 1 or more.
        start: Submits a group; returns a future for each item.
    """

    def __init__(
        self, items: Iterable[T] | AsyncIterable[T], window: int, start: "Start[T]"
    ) -> None:
        check_window(window)
        self._items = items
        self._group_size = max(1, min(CHUNK, window // 4))
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
        async for group in grouped(self._items, self._group_size):
            for _ in group:
                await self._slots.acquire()
            for future in await self._start(group):
                started(future)
