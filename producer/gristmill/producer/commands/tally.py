"""Count what a run has finished, and say how fast it goes and how long it will take."""

from collections import Counter, deque
from datetime import timedelta

from gristmill.shared.results import Result

RATE_WINDOW_S = 30.0
"""Time over which rates are measured: long enough to be steady, short enough to follow a change."""


class Tally:
    """Counts what finished; time is an argument.

    Args:
        total: Requests of the whole run.
        now_s: Monotonic time.
        num_finished: Finished before this process began; not part of any rate.
        num_failed: How many of those failed.
    """

    def __init__(
        self, total: int, now_s: float, *, num_finished: int = 0, num_failed: int = 0
    ) -> None:
        self.total = total
        self.num_finished = num_finished
        self.num_failed = num_failed
        self.num_bad = 0
        self.num_earlier = num_finished
        self.output_tokens = 0
        self.prompt_tokens = 0
        self._samples = deque([(now_s, num_finished, 0)])
        self._start_s = now_s

    def add(self, result: Result) -> None:
        """Count a result that this process received."""
        self.num_finished += 1
        self.num_failed += not result.is_success
        prompt_tokens, output_tokens = result.tokens
        self.prompt_tokens += prompt_tokens
        self.output_tokens += output_tokens

    def add_bad_line(self) -> None:
        """Count a line that became an error row; no worker saw it, so it is part of no rate."""
        self.num_finished += 1
        self.num_failed += 1
        self.num_bad += 1

    def sample(self, now_s: float) -> None:
        """Remember where the run stands; rates span the samples of the last `RATE_WINDOW_S`."""
        self._samples.append((now_s, self.num_finished - self.num_bad, self.output_tokens))
        while self._samples[1][0] < now_s - RATE_WINDOW_S:
            self._samples.popleft()

    def rates(self) -> tuple[float, float]:
        """Return requests/s and output tokens/s; zeros before the second sample."""
        (start_s, finished, tokens), (end_s, last_finished, last_tokens) = (
            self._samples[0],
            self._samples[-1],
        )
        span_s = end_s - start_s
        if span_s <= 0:
            return 0.0, 0.0
        return (last_finished - finished) / span_s, (last_tokens - tokens) / span_s

    def remaining_s(self) -> float | None:
        """Return the time left at the present rate, or None while nothing finishes."""
        rate = self.rates()[0]
        return (self.total - self.num_finished) / rate if rate > 0 else None

    def elapsed_s(self, now_s: float) -> float:
        """Return how long this process has been at it."""
        return now_s - self._start_s

    def line(self, states: Counter[str] | None = None) -> str:
        """Return one line: how far, what runs, how fast, how long.

        Args:
            states: Of the unfinished requests that were submitted, requests of nobody else; None if
                they are not known.
        """
        parts = [f"{self.num_finished:,}/{self.total:,} finished ({self.num_failed:,} failed)"]
        if states is not None:
            parts.append(f"{states['running']:,} running")
            parts.append(f"{states['queued'] + states['delayed']:,} waiting")
        if tokens_rate := self.rates()[1]:
            parts.append(f"{tokens_rate:,.0f} tok/s")
        if (remaining_s := self.remaining_s()) is not None:
            parts.append(f"{timedelta(seconds=round(remaining_s))} left")
        return ", ".join(parts)
