"""Divide the time of an engine's devices among its requests, by tokens. The rules are pure.

The runner notes each request that enters the engine and leaves it. Wall time times devices flows into a pool while at
least one request is in the engine. A request with an answer is charged pool x its tokens / tokens not charged yet.
Both are tokens that the engine processed. A request without an answer takes its part out of the pool uncharged. So the
charges of all requests never exceed the time of the devices.
"""

from collections.abc import Callable


class DeviceTime:
    """The time of one engine's devices that no request was charged for yet.

    Args:
        num_devices: Devices of the engine; a part of one if several engines share it.
        processed_tokens: Returns the prompt and output tokens that the engine processed since its start; always 0
            if the engine does not count. The shares then go by the time that each request spent in the engine.
    """

    def __init__(self, num_devices: float, processed_tokens: Callable[[], int]) -> None:
        self._num_devices = num_devices
        self._processed_tokens = processed_tokens
        self._settled_tokens = 0.0  # tokens already charged, or taken out uncharged
        self._pool_s = 0.0
        self._pool_until_s = 0.0  # moment up to which time is in the pool
        self._rounding_ms = 0.0  # charged less than due so far, below 1
        self._num_running = 0
        self._sum_started_s = 0.0

    def enter(self, now_s: float) -> None:
        """Note that a request enters the engine.

        Args:
            now_s: Moment, in monotonic seconds.
        """
        if not self._num_running:
            self._pool_s, self._settled_tokens = 0.0, self._processed_tokens()
            self._pool_until_s = now_s
        self._fill(now_s)
        self._num_running += 1
        self._sum_started_s += now_s

    def leave_answered(self, started_s: float, tokens: int, now_s: float) -> int:
        """Note that a request leaves with an answer; return its device time in milliseconds.

        Args:
            started_s: Moment of its `enter`.
            tokens: Prompt and output tokens of the answer; 0 charges nothing, as for a refusal.
            now_s: Moment, in monotonic seconds.
        """
        self._fill(now_s)
        share = self._share_of_time(started_s, now_s)
        if self._processed_tokens():
            share = tokens / max(self._unsettled_tokens, tokens, 1)
        due_ms = self._take(share if tokens else 0.0) * 1000 + self._rounding_ms
        self._forget(started_s)
        self._rounding_ms = due_ms % 1
        return int(due_ms)

    def leave_unanswered(self, started_s: float, now_s: float) -> None:
        """Note that a request leaves without an answer: aborted, or failed by the engine.

        Nobody knows its tokens, so its part goes by the time that it spent in the engine.
        """
        self._fill(now_s)
        self._take(self._share_of_time(started_s, now_s))
        self._forget(started_s)

    @property
    def _unsettled_tokens(self) -> float:
        return self._processed_tokens() - self._settled_tokens

    def _fill(self, now_s: float) -> None:
        self._pool_s += (now_s - self._pool_until_s) * self._num_devices
        self._pool_until_s = now_s

    def _take(self, share: float) -> float:
        """Take a share of the pool and of the unsettled tokens; return the device seconds."""
        taken_s = share * self._pool_s
        self._pool_s -= taken_s
        self._settled_tokens += share * max(self._unsettled_tokens, 0)
        return taken_s

    def _share_of_time(self, started_s: float, now_s: float) -> float:
        """Return the part that a request's time in the engine is of that of all running requests."""
        total_s = self._num_running * now_s - self._sum_started_s
        return (now_s - started_s) / total_s if total_s > 0 else 1 / self._num_running

    def _forget(self, started_s: float) -> None:
        self._num_running -= 1
        self._sum_started_s = self._sum_started_s - started_s if self._num_running else 0.0
