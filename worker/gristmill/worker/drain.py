"""Stopping: SIGTERM or SIGINT drains, a second one hurries.

Draining means: claim nothing more, finish what fits into the grace period, hand back the rest at once.
"""

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import structlog

from gristmill.shared.tasks import end

log = structlog.get_logger()

T = TypeVar("T")


class Drain:
    """Whether this process is to stop, and how long it may take.

    Args:
        timeout_s: Time to finish after the first signal.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._deadline: float | None = None
        self.started = asyncio.Event()
        self._hurried = asyncio.Event()
        self.on_start: Callable[[], None] = lambda: None

    def install(self) -> None:
        """Listen to SIGTERM and SIGINT; call on the main thread, inside the event loop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number.name)

    @property
    def is_draining(self) -> bool:
        """Whether nothing more is to be claimed."""
        return self.started.is_set()

    def start(self, reason: str) -> None:
        """Begin to drain; the grace period runs from the first call."""
        if not self.is_draining:
            self._deadline = time.monotonic() + self._timeout_s
            self.started.set()
            self.on_start()
            log.info("worker.draining", reason=reason, timeout_s=self._timeout_s)

    async def until_over(self, idle: asyncio.Event) -> bool:
        """Wait until `idle` is set or the grace period is over; returns whether it is set."""
        remaining_s = max(0.0, (self._deadline or time.monotonic()) - time.monotonic())
        waits = {asyncio.create_task(idle.wait()), asyncio.create_task(self._hurried.wait())}
        await asyncio.wait(waits, timeout=remaining_s, return_when=asyncio.FIRST_COMPLETED)
        await end(*waits)
        return idle.is_set()

    async def unless_started(self, step: Coroutine[Any, Any, T]) -> T | None:
        """Take a step of the start; None, and the step is cancelled, if the drain comes first."""
        running = asyncio.create_task(step)
        started = asyncio.create_task(self.started.wait())
        try:
            await asyncio.wait([running, started], return_when=asyncio.FIRST_COMPLETED)
            return running.result() if running.done() else None
        finally:
            await end(running, started)

    def _signalled(self, name: str) -> None:
        if self.is_draining:
            log.info("worker.hurried", reason=name)
            self._hurried.set()
        self.start(name)
