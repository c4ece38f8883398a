"""Whether the engine still steps: a policy over its counters, with the time as an argument."""

import time

from gristmill.worker.engine.interface import EngineStats


class Progress:
    """Remembers when the step counter was last seen to move; asked by each health check."""

    def __init__(self) -> None:
        self._steps: int | None = None
        self._moved_at = 0.0

    def is_stalled(self, stats: EngineStats, limit_s: float, now: float | None = None) -> bool:
        """Tell whether something runs and no step was taken for longer than the limit.

        Args:
            stats: The engine's counters.
            limit_s: Longest time that one step may take.
            now: A monotonic time; the clock's when left out.
        """
        now = time.monotonic() if now is None else now
        if stats.running == 0 or stats.steps != self._steps:
            self._steps, self._moved_at = stats.steps, now
        return now - self._moved_at > limit_s
