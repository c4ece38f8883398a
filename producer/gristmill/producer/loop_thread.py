"""An event loop in a second thread, for callers that have no loop, or whose loop must not wait."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

from gristmill.shared.tasks import end

T = TypeVar("T")


class LoopThread:
    """A loop that runs until `stop`. The thread is a daemon: it does not keep the process alive.

    Args:
        name: Name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=_run_loop, args=(self._loop,), name=name, daemon=True
        )
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        """Start a coroutine on the loop; any thread may call this."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def stop(self) -> None:
        """End what still runs, then the loop and its thread."""
        self.start(_end_others()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _end_others() -> None:
    await end(*(asyncio.all_tasks() - {asyncio.current_task()}))


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop until it is stopped.

    asyncio hands SystemExit of a task to who awaits the task, and raises it here too.
    """
    while True:
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt):
            continue
        return
