"""Stop a worker: SIGTERM or SIGINT starts the drain, and a second one ends its grace period.

A draining worker claims nothing more. It finishes what it can in the grace period, then releases
the rest.
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
    """The state of a drain: whether this process must stop, and how long it may take.

    Args:
        timeout_s: Grace period in seconds, from the first signal.

    Attributes:
        started: Event that is set once the drain has started.
        on_start: Callback, called once when the drain starts.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._deadline: float | None = None
        self.started = asyncio.Event()
        self._hurried = asyncio.Event()
        self.on_start: Callable[[], None] = lambda: None

    def install(self) -> None:
        """Handle SIGTERM and SIGINT. Call it on the main thread, inside the event loop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number.name)

    @property
    def is_draining(self) -> bool:
        """True once the worker must claim nothing more."""
        return self.started.is_set()

    def start(self, reason: str) -> None:
        """Begin to drain; the grace period runs from the first call."""
        if not self.is_draining:
            self._deadline = time.monotonic() + self._timeout_s
            self.started.set()
            self.on_start()
            log.info("worker.draining", reason=reason, timeout_s=self._timeout_s)

    async def until_over(self, idle: asyncio.Event) -> bool:
        """Wait until `idle` is set, the grace period is over, or a second signal comes.

        Returns:
            True if `idle` is set.
        """
        remaining_s = max(0.0, (self._deadline or time.monotonic()) - time.monotonic())
        waits = {asyncio.create_task(idle.wait()), asyncio.create_task(self._hurried.wait())}
        await asyncio.wait(waits, timeout=remaining_s, return_when=asyncio.FIRST_COMPLETED)
        await end(*waits)
        return idle.is_set()

    async def unless_started(self, step: Coroutine[Any, Any, T]) -> T | None:
        """Run a step; if the drain starts first, cancel it and return None."""
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
