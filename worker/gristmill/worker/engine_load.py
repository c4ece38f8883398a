"""Count what the engine runs at this moment, from all queues of its worker together."""

import asyncio

from gristmill.shared.operations import MAX_CLAIM
from gristmill.worker import metrics
from gristmill.worker.token_time import TokenTime


class EngineLoad:
    """Counts what one engine runs.

    Attributes:
        num_running: Requests in the engine.
        suspect_width: Suspects that may run at the same time, beside any normal requests.
        token_time: Measured time per output token.
        changed: Event that makes the batcher look again, set when a request ends and by `wake`. The
            waiting batcher clears it.
        woken: Event that only `wake` sets; a batcher that has room waits for this one.
        idle: Event that is set while nothing runs.
    """

    def __init__(self) -> None:
        self.num_running = 0
        self.suspect_width = 1
        self.token_time = TokenTime()
        self.changed = asyncio.Event()
        self.woken = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()

    def add(self) -> None:
        """Count a request that starts."""
        self.num_running += 1
        self.idle.clear()
        metrics.running.set(self.num_running)

    def remove(self) -> None:
        """Count a request that has ended."""
        self.num_running -= 1
        metrics.running.set(self.num_running)
        self.changed.set()
        if not self.num_running:
            self.idle.set()

    def wake(self) -> None:
        """Make the batcher claim again: what it found before may have been less than there is now."""
        self.changed.set()
        self.woken.set()

    def widen_suspects(self) -> None:
        """Double `suspect_width`, because a suspect has ended and the engine lives."""
        self.suspect_width = min(self.suspect_width * 2, MAX_CLAIM)

    def narrow_suspects(self) -> None:
        """Let one suspect run at a time, because the engine has died."""
        self.suspect_width = 1
