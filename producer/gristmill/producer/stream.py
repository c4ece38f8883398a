"""Submit an iterable of any length a window at a time; `Client.as_completed` and `map` read from it."""

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

from gristmill.producer.arguments import check_window
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.results import Result
from gristmill.shared.tasks import end

T = TypeVar("T")


class Expected(NamedTuple):
    """The result of one item that the stream waits for: the id of its request, and its future."""

    request_id: str
    future: "asyncio.Future[Result]"


class Group(NamedTuple, Generic[T]):
    """Items of a call that are started together.

    Attributes:
        items: The items, at least one.
        is_last: True if the source has no more; False if that is not known yet.
    """

    items: list[T]
    is_last: bool


Start = Callable[[Group[T]], Awaitable[tuple[list[Expected], InvalidRequest | None]]]
"""Starts the next items; returns those before the first bad one, and the error of the bad one."""

CHUNK = 128
"""Items that are started together at most."""

LINGER_S = 0.01
"""Longest wait of a group for its next item; longer would delay the first result of a slow source."""


async def grouped(items: Iterable[T] | AsyncIterable[T], size: int) -> AsyncIterator[Group[T]]:
    """Group items; a slow asynchronous source is not held back until a group is full.

    A source that raises first has what it gave before in a group.
    """
    if isinstance(items, AsyncIterable):
        async for group in _grouped_as_they_come(aiter(items), size):
            yield group
        return
    iterator, has_more = iter(items), True
    while has_more:
        some, error = _next_group(iterator, size)
        has_more = len(some) == size
        if some:
            yield Group(some, is_last=not has_more)
        if error:
            raise error


def _next_group(iterator: Iterator[T], size: int) -> tuple[list[T], Exception | None]:
    """Return the next items, fewer than `size` at the end, and the error of a source that failed after them."""
    group: list[T] = []
    try:
        group.extend(islice(iterator, size))
    except Exception as error:  # noqa: BLE001  # raised after its group
        return group, error
    return group, None


async def _grouped_as_they_come(items: AsyncIterator[T], size: int) -> AsyncIterator[Group[T]]:
    """Yield a group when it is full, or when the next item takes longer than `LINGER_S`."""
    group: list[T] = []
    pending: asyncio.Future[T] = asyncio.ensure_future(anext(items))
    try:
        while True:
            done, _ = await asyncio.wait([pending], timeout=LINGER_S if group else None)
            if not done or len(group) == size:
                yield Group(group, is_last=False)
                group = []
                continue
            if pending.exception():
                break
            group.append(pending.result())
            pending = asyncio.ensure_future(anext(items))
        if group:
            yield Group(group, is_last=True)
        with suppress(StopAsyncIteration):
            pending.result()
    finally:
        await _end_unread(pending)


async def _end_unread(task: "asyncio.Future[Any]") -> None:
    """End a task whose result nobody reads; asyncio logs an error that nobody has read."""
    await end(task)
    if not task.cancelled():
        task.exception()


class Stream(Generic[T]):
    """A window of unfinished requests over an iterable; read it once.

    Args:
        items: Requests to submit, or ids that were submitted before.
        window: Items that may be started and not yet handed out, 1 or more.
        start: Submits a group, or notes its ids.
        forget: Called with the id and the future of each item whose result nobody takes any more.
        open_call: Opens the call of a client in which the items are read and started.

    A bad item ends the stream with its error as soon as it is read. The items before it are started then.
    """

    def __init__(
        self,
        items: Iterable[T] | AsyncIterable[T],
        window: int,
        start: "Start[T]",
        forget: Callable[[str, "asyncio.Future[Result]"], None],
        open_call: Callable[[], AbstractAsyncContextManager[None]],
    ) -> None:
        check_window(window)
        self._items = items
        self._group_size = max(1, min(CHUNK, window // 4))
        self._slots = asyncio.Semaphore(window)
        self._start = start
        self._forget = forget
        self._open_call = open_call
        self._unfinished: dict[int, Expected] = {}
        self._num_started = 0

    async def in_order(self) -> AsyncGenerator[Result, None]:
        """Yield results in the order of the items."""
        started: asyncio.Queue[int | None] = asyncio.Queue()
        async with self._pumping(started.put_nowait) as pump:
            pump.add_done_callback(lambda _: started.put_nowait(None))
            while (number := await started.get()) is not None:
                future = self._unfinished[number].future
                await _first_of(future, pump)
                yield await asyncio.shield(future)
                self._hand_out(number)
            await pump

    async def as_completed(self) -> AsyncGenerator[Result, None]:
        """Yield results as they finish."""
        finished: asyncio.Queue[int | None] = asyncio.Queue()

        def watch(number: int) -> None:
            future = self._unfinished[number].future
            future.add_done_callback(lambda _: finished.put_nowait(number))

        async with self._pumping(watch) as pump:
            pump.add_done_callback(lambda _: finished.put_nowait(None))
            while self._unfinished or not pump.done():
                number = await finished.get()
                if number is None:
                    pump.result()  # raises the error of a bad item
                    continue
                yield self._unfinished[number].future.result()
                self._hand_out(number)
            await pump

    @asynccontextmanager
    async def _pumping(self, started: Callable[[int], None]) -> AsyncIterator["asyncio.Task[None]"]:
        """Start items in a task of its own; at the end, forget those whose results were not taken."""
        pump = asyncio.create_task(self._pump(started))
        try:
            yield pump
        finally:
            await _end_unread(pump)
            for expected in self._unfinished.values():
                self._forget(*expected)

    def _hand_out(self, number: int) -> None:
        """Note that the result of an item was taken."""
        del self._unfinished[number]
        self._slots.release()

    async def _pump(self, started: Callable[[int], None]) -> None:
        async with self._open_call():
            async for group in grouped(self._items, self._group_size):
                for _ in group.items:
                    await self._slots.acquire()
                expected, error = await self._start(group)
                for each in expected:
                    self._unfinished[self._num_started] = each
                    started(self._num_started)
                    self._num_started += 1
                if error:
                    raise error


async def _first_of(future: "asyncio.Future[Result]", pump: "asyncio.Task[None]") -> None:
    """Wait for a result, or for the error of the pump, which it raises."""
    if not future.done() and not pump.done():
        await asyncio.wait((future, pump), return_when=asyncio.FIRST_COMPLETED)
    if not future.done():
        pump.result()
