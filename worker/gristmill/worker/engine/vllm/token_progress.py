"""Decide from the engine's counters whether it still yields tokens.

`in_process.py` calls this module in each check; tests pass the time as an argument.
"""

import time

from gristmill.worker.engine.interface import EngineStats


class TokenProgress:
    """A check for a stalled engine; it remembers when the token counters last changed."""

    def __init__(self) -> None:
        self._tokens: int | None = None
        self._moved_at = 0.0

    def is_stalled(self, stats: EngineStats, limit_s: float, now: float | None = None) -> bool:
        """Return whether the engine holds requests but has yielded no token for over `limit_s`.

        Steps prove nothing: an engine that can schedule none of its requests still makes empty
        steps. Prompt tokens count once their prefill is done.

        Args:
            stats: The engine's counters.
            limit_s: Longest time without a token, in seconds; above the longest prefill.
            now: Monotonic time in seconds; by default the clock's.
        """
        now = time.monotonic() if now is None else now
        tokens = stats.prompt_tokens + stats.output_tokens
        if stats.running + stats.waiting == 0 or tokens != self._tokens:
            self._tokens, self._moved_at = tokens, now
        return now - self._moved_at > limit_s
