"""Whether the engine still yields tokens: a policy over its counters, with the time as an argument."""

import time

from gristmill.worker.engine.interface import EngineStats


class TokenProgress:
    """Remembers when the token counters were last seen to move; asked by each health check."""

    def __init__(self) -> None:
        self._tokens: int | None = None
        self._moved_at = 0.0

    def is_stalled(self, stats: EngineStats, limit_s: float, now: float | None = None) -> bool:
        """Tell whether the engine holds something and has yielded no token for longer than the limit.

        Steps prove nothing: an engine that can schedule nothing it holds goes on taking empty ones.
        Prompt tokens count once their prefill is done.

        Args:
            stats: The engine's counters.
            limit_s: Longest time without a token; above the longest prefill.
            now: A monotonic time; the clock's when left out.
        """
        now = time.monotonic() if now is None else now
        tokens = stats.prompt_tokens + stats.output_tokens
        if stats.running + stats.waiting == 0 or tokens != self._tokens:
            self._tokens, self._moved_at = tokens, now
        return now - self._moved_at > limit_s
