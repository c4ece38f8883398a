"""Record whether the worker makes progress.

The event loop and the heartbeat write it; the probes and the heartbeat read it. All moments are
monotonic seconds. Python reads and writes a float whole, so this needs no lock.
"""

import time
from collections.abc import Callable

from gristmill.shared.brakes import Brake


class Liveness:
    """The last signs of life of one worker.

    Args:
        stall_timeout_s: Seconds without a turn of the event loop after which it counts as stalled.
        redis_timeout_s: Seconds since the last answer of Redis after which Redis counts as away.
        engine_timeout_s: Seconds since the engine's last sign of life after which it counts as
            silent.

    Attributes:
        num_settled: Requests whose results were written since the worker started.
        num_running: Returns how many requests the engine holds.
    """

    def __init__(
        self, stall_timeout_s: float, redis_timeout_s: float, engine_timeout_s: float
    ) -> None:
        self._stall_timeout_s = stall_timeout_s
        self._redis_timeout_s = redis_timeout_s
        self._loop_at = time.monotonic()
        self._redis_at = time.monotonic()
        self._engine_timeout_s = engine_timeout_s
        self._engine_at = time.monotonic()
        self.num_settled = 0
        self.num_running: Callable[[], int] = lambda: 0
        self.waits_for: str | None = "the engine to start"
        self.wrong_types: dict[str, str] = {}  # queue -> its keys of a wrong type, in words
        self._writes_since: dict[
            str, float
        ] = {}  # queue -> start of the write of results that runs
        self.brake: Brake | None = None  # why the worker only tries single requests
        self.lease_brakes: dict[str, Brake] = {}  # queue -> why the worker claims nothing from it

    def loop_ran(self) -> None:
        """Note that the event loop took a turn."""
        self._loop_at = time.monotonic()

    def heard_redis(self) -> None:
        """Note a finished round trip to Redis."""
        self._redis_at = time.monotonic()

    def heard_engine(self) -> None:
        """Note a sign of life of the engine."""
        self._engine_at = time.monotonic()

    def write_began(self, queue: str) -> None:
        """Note that results of a queue are being written."""
        self._writes_since[queue] = time.monotonic()

    def write_ended(self, queue: str) -> None:
        """Note that Redis has them."""
        del self._writes_since[queue]

    def note_waiting(self, what: str | None) -> None:
        """Note what the worker waits for; None means that it claims."""
        self.waits_for = what

    @property
    def is_claiming(self) -> bool:
        """True if the worker claims requests."""
        return self.waits_for is None

    def stalled_reason(self) -> str | None:
        """Return a text that says how long the event loop has not run, or None if it runs."""
        silence_s = time.monotonic() - self._loop_at
        if silence_s > self._stall_timeout_s:
            return f"the event loop has not run for {silence_s:.0f} s"
        return None

    def is_alive(self) -> bool:
        """Return whether the event loop makes progress, whether or not Redis answers."""
        return self.stalled_reason() is None

    def unready_reason(self) -> str | None:
        """Return why the worker is not ready to run requests, or None if it is ready."""
        if reason := self.stalled_reason():
            return reason
        if self.waits_for:
            return f"waiting for {self.waits_for}"
        if reason := self._fault():
            return reason
        silence_s = time.monotonic() - self._redis_at
        if silence_s > self._redis_timeout_s:
            return f"no answer of Redis for {silence_s:.0f} s"
        silence_s = time.monotonic() - self._engine_at
        if silence_s > self._engine_timeout_s:
            return f"no answer of the engine for {silence_s:.0f} s"
        return None

    def _fault(self) -> str | None:
        """Return what an operator must mend, or None."""
        brakes = [*filter(None, (self.brake,)), *self.lease_brakes.copy().values()]
        braked = (f"braked: {brake.in_words()}" for brake in brakes)
        faults = (*braked, self._unwritten(), *self.wrong_types.values())
        return "; ".join(filter(None, faults)) or None

    def _unwritten(self) -> str:
        """Return for how long Redis has not taken the results of finished requests, or ""."""
        now_s = time.monotonic()
        wait_s = max((now_s - began_s for began_s in tuple(self._writes_since.values())), default=0)
        if wait_s <= self._redis_timeout_s:
            return ""
        return f"finished requests wait for {wait_s:.0f} s until Redis takes their results"
