"""The calls that run in a client, so that the end of the client can end them in words."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager

from gristmill.producer.arguments import closed_client, forked_client

END_INTERVAL_S = 0.5
"""Seconds between two cancellations of a call: redis-py can lose one; see `tasks.end`."""


class _Call:
    """One call in a task.

    Attributes:
        ended: Done at the end of the call.
        num_cancels: How often `OpenCalls.close` cancelled it.
    """

    def __init__(self) -> None:
        self._task: asyncio.Task[object] | None = asyncio.current_task()
        self._num_cancels_before = self._task.cancelling() if self._task else 0
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.num_cancels = 0

    def cancel(self) -> None:
        if self._task:
            self.num_cancels += 1
            self._task.cancel()

    def end(self) -> bool:
        """Take back our cancellations; returns whether nobody else cancelled the task meanwhile."""
        self.ended.set_result(None)
        for _ in range(self.num_cancels):
            if self._task:
                self._task.uncancel()
        return not self._task or self._task.cancelling() <= self._num_cancels_before


class OpenCalls:
    """The calls of one client; each runs inside `open`.

    Attributes:
        is_closed: Whether the client is closed.
    """

    def __init__(self) -> None:
        self.is_closed = False
        self._process = os.getpid()
        self._calls: set[_Call] = set()

    @property
    def is_forked(self) -> bool:
        """Whether this process is a fork of the one that opened the client."""
        return os.getpid() != self._process

    def check(self) -> None:
        """Check that a call may begin.

        Raises:
            InvalidRequest: The client is closed, or another process opened it.
        """
        if self.is_forked:
            raise forked_client()
        if self.is_closed:
            raise closed_client()

    @contextmanager
    def open(self) -> Iterator[None]:
        """Run a call of the current task.

        Raises:
            InvalidRequest: As `check`; also if the client is closed while the call runs.
        """
        self.check()
        call = _Call()
        self._calls.add(call)
        try:
            yield
        except asyncio.CancelledError:
            if call.num_cancels and call.end():
                raise closed_client() from None
            raise
        finally:
            self._calls.discard(call)
            if not call.ended.done():
                call.end()

    async def close(self) -> None:
        """End all calls; each raises the error of a closed client."""
        self.is_closed = True
        while self._calls:
            calls = list(self._calls)
            for call in calls:
                call.cancel()
            await asyncio.wait([call.ended for call in calls], timeout=END_INTERVAL_S)
