"""Count the finished requests of a run, and compute its rate and its remaining time."""

from collections import Counter, deque
from datetime import timedelta

from gristmill.producer.commands.run_progress import RunProgress
from gristmill.shared.answers import CUT
from gristmill.shared.results import Result

RATE_WINDOW_S = 30.0
"""Seconds over which rates are measured: steady enough, and still quick to follow a change."""

MIN_RATE_S = 1.0
"""Shortest run, in seconds, whose summary has a rate. A shorter one mostly collects what earlier
processes submitted."""


class Tally:
    """Counts the finished requests of a run; the caller passes the time.

    A rate covers the time up to the last request that this process saw finish. So the time left
    does not grow during a stall. After `RATE_WINDOW_S` without a finished request there is no rate.

    Args:
        total: Requests of the whole run.
        now_s: Monotonic time at which this process began, in seconds.
        num_finished: Requests that finished before this process began; they are part of no rate.
        num_failed: Failed requests among those.
        num_cut: Answers among those that reached their limit of tokens.
        output_tokens: Output tokens of those.

    Attributes:
        begin_ms: Redis time at which this process began to wait. Older results are part of no rate.
        example: The first failed request in words; "" if none has failed.
        num_cut: Answers that reached their limit of tokens.
        num_found: Results older than `begin_ms`.
    """

    def __init__(
        self, total: int, now_s: float, *, num_finished: int = 0, num_failed: int = 0, num_cut: int = 0,
        output_tokens: int = 0,
    ) -> None:  # fmt: skip
        self.total = total
        self.num_finished = num_finished
        self.num_failed = num_failed
        self.num_cut = num_cut
        self.num_bad = 0
        self._num_refused = 0
        self.example = ""
        self.num_found = 0
        self.num_earlier = num_finished
        self.begin_ms = 0
        self.output_tokens = output_tokens
        self.prompt_tokens = 0
        self._found_tokens = output_tokens
        self._samples = deque([(now_s, num_finished, 0)])
        self._start_s = self._now_s = now_s
        self._is_served = True

    def add(self, result: Result, *, has_failed: bool | None = None, num_copies: int = 0) -> None:
        """Count a result that this process received.

        Args:
            result: The last result of its line.
            has_failed: True if the line has failed; None reads it from the result.
            num_copies: Further lines with the same answer, which `add_without_run` counts.
        """
        self.num_finished += 1
        self.num_failed += not result.is_success if has_failed is None else has_failed
        self.num_cut += (1 + num_copies) * (result.finish_reason == CUT)
        self.num_found += self._is_found(result)
        self.add_tokens(result)

    def add_tokens(self, result: Result) -> None:
        """Count the tokens of a result, which may be a cut answer whose line is asked again."""
        prompt_tokens, output_tokens = result.tokens
        self.prompt_tokens += prompt_tokens
        self.output_tokens += output_tokens
        self._found_tokens += output_tokens * self._is_found(result)

    def _is_found(self, result: Result) -> bool:
        return 0 < result.finished_ms < self.begin_ms

    def add_bad_line(self) -> None:
        """Count a line that became an error row."""
        self._num_refused += 1
        self.add_without_run(1, has_failed=True)

    def add_without_run(self, num: int, *, has_failed: bool) -> None:
        """Count lines that no worker saw: bad ones, skipped ones, copies. They are part of no rate."""
        self.num_finished += num
        self.num_failed += num * has_failed
        self.num_bad += num

    def sample(self, now_s: float, *, is_served: bool = True) -> None:
        """Record the counts at this moment; rates are differences between such samples.

        Args:
            now_s: Monotonic time in seconds.
            is_served: True if a worker is alive. When one comes back, rates start from that moment.
        """
        sample = (now_s, self._num_seen, self.seen_tokens)
        if is_served and not self._is_served:
            self._samples = deque([sample])
        elif sample[1] != self._samples[-1][1]:
            self._samples.append(sample)
        while len(self._samples) > 2 and self._samples[1][0] < now_s - RATE_WINDOW_S:
            self._samples.popleft()
        self._now_s, self._is_served = now_s, is_served

    @property
    def _num_seen(self) -> int:
        """Finished lines, without those that no worker saw and results older than `begin_ms`."""
        return self.num_finished - self.num_bad - self.num_found

    @property
    def num_ran(self) -> int:
        """Requests that this process saw finish."""
        return self._num_seen - self.num_earlier

    @property
    def seen_tokens(self) -> int:
        """Output tokens of the requests that this process saw finish."""
        return self.output_tokens - self._found_tokens

    def rates(self) -> tuple[float, float]:
        """Return requests/s and output tokens/s; zeros while nothing finishes."""
        (start_s, finished, tokens), (end_s, last_finished, last_tokens) = (
            self._samples[0],
            self._samples[-1],
        )
        span_s = end_s - start_s
        if span_s <= 0 or not self._is_served or self._now_s - end_s > RATE_WINDOW_S:
            return 0.0, 0.0
        return (last_finished - finished) / span_s, (last_tokens - tokens) / span_s

    def remaining_s(self) -> float | None:
        """Return the time left at the present rate, or None while nothing finishes."""
        rate = self.rates()[0]
        return (self.total - self.num_finished) / rate if rate > 0 else None

    def elapsed_s(self, now_s: float) -> float:
        """Return the seconds since this process began."""
        return now_s - self._start_s

    def progress(self, states: Counter[str] | None = None, note: str = "") -> RunProgress:
        """Return the progress to show: counts, rate and time left.

        Args:
            states: Unfinished requests of this run by state; None if their states are not known.
                `orphaned` counts the requests of workers whose lease has ended.
            note: More words for the outlook, such as the status of a batch.
        """
        has_only_refused = 0 < self._num_refused == self.num_failed  # nothing that ran has failed
        failed = f"{self.num_failed:,} failed" + (" without running" if has_only_refused else "")
        parts = [f"{self.num_finished:,}/{self.total:,} finished ({failed})"]
        if states is not None:
            if states["orphaned"]:
                parts.append(f"{states['orphaned']:,} held by a dead worker")
            parts.append(f"{states['running']:,} in flight")
            parts.append(f"{states['queued'] + states['delayed']:,} waiting")
        if tokens_rate := self.rates()[1]:
            parts.append(f"{tokens_rate:,.0f} tok/s")
        outlook = ", ".join(filter(None, [note, self._outlook()]))
        return RunProgress(self.num_finished, self.total, tuple(parts), outlook)

    def _outlook(self) -> str:
        """Return how long the rest will take, why nothing moves, or "" if neither is known."""
        if self.num_finished >= self.total:
            return ""
        if not self._is_served:
            return "no worker is alive"
        remaining_s = self.remaining_s()
        return "" if remaining_s is None else f"{timedelta(seconds=round(remaining_s))} left"

    def summary(self, now_s: float) -> str:
        """Return one line about what this process has done."""
        elapsed_s = self.elapsed_s(now_s)
        num_here = self.num_finished - self.num_earlier - self.num_found
        words = f"{self.num_found:,} had finished before, " if self.num_found else ""
        words += f"{num_here:,} finished in {elapsed_s:,.1f} s, {self.num_failed:,} of {self.total:,} failed"
        words += f"; {self.seen_tokens:,} output tokens"
        if elapsed_s < MIN_RATE_S or not self.seen_tokens:
            return words
        return f"{words}, {self.seen_tokens / elapsed_s:,.0f} tok/s"
