"""The running batch of the stub engine: seats, a KV cache, preemptions; a step is a call, not a time.

It schedules as vLLM does: first come first served, who waits gets a seat when its prompt fits into the cache, and
when the cache is full the newest that runs is pushed back to the front of what waits, to be computed again.
"""

from collections import deque
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Sequence:
    """One request in the stub.

    Attributes:
        prompt_tokens: Of its prompt.
        max_tokens: Output tokens, after which it ends.
        num_output_tokens: Output tokens so far; a preemption keeps them.
    """

    prompt_tokens: int
    max_tokens: int
    num_output_tokens: int = 0

    @property
    def num_cached_tokens(self) -> int:
        """Tokens that it holds in the cache while it runs."""
        return self.prompt_tokens + self.num_output_tokens


class StubBatch:
    """What runs and what waits.

    Args:
        max_num_seqs: Seats.
        kv_cache_tokens: Size of the cache; 0 for one without an end.

    Attributes:
        num_preemptions: Times that a sequence was pushed back.
        num_recomputed_tokens: Tokens that it then had in the cache.
        num_output_tokens: Tokens generated.
        num_cached_tokens: Tokens in the cache.
    """

    def __init__(self, max_num_seqs: int, kv_cache_tokens: int = 0) -> None:
        self._max_num_seqs = max_num_seqs
        self._kv_cache_tokens = kv_cache_tokens
        self._waiting: deque[Sequence] = deque()
        self._running: dict[Sequence, None] = {}  # in the order of their seats
        self.num_preemptions = self.num_recomputed_tokens = 0
        self.num_output_tokens = self.num_cached_tokens = 0

    @property
    def num_running(self) -> int:
        """Sequences that have a seat."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for one."""
        return len(self._waiting)

    @property
    def usage(self) -> float:
        """Used share of the cache."""
        return self.num_cached_tokens / self._kv_cache_tokens if self._kv_cache_tokens else 0.0

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait for a seat, which it may get at once."""
        self._waiting.append(sequence)
        self._seat()

    def remove(self, sequence: Sequence) -> None:
        """Drop a sequence, if it is there: it was aborted."""
        if sequence in self._running:
            self._release(sequence)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)

    def step(self) -> list[Sequence]:
        """Give each sequence that runs a token, and free seats to those that wait; returns what ended."""
        self._seat()
        self._make_room()
        for sequence in self._running:
            sequence.num_output_tokens += 1
        self.num_output_tokens += len(self._running)
        self.num_cached_tokens += len(self._running)
        ended = [each for each in self._running if each.num_output_tokens >= each.max_tokens]
        for sequence in ended:
            self._release(sequence)
        self._seat()
        return ended

    def _seat(self) -> None:
        while self._waiting and len(self._running) < self._max_num_seqs:
            if self._running and not self._fits(self._waiting[0].num_cached_tokens + 1):
                return
            sequence = self._waiting.popleft()
            self._running[sequence] = None
            self.num_cached_tokens += sequence.num_cached_tokens

    def _make_room(self) -> None:
        """Push the newest back until each of the others may have a token more."""
        while len(self._running) > 1 and not self._fits(len(self._running)):
            newest = next(reversed(self._running))
            self.num_recomputed_tokens += newest.num_cached_tokens
            self._release(newest)
            self._waiting.appendleft(newest)
            self.num_preemptions += 1

    def _fits(self, num_tokens: int) -> bool:
        size = self._kv_cache_tokens
        return not size or self.num_cached_tokens + num_tokens <= size

    def _release(self, sequence: Sequence) -> None:
        del self._running[sequence]
        self.num_cached_tokens -= sequence.num_cached_tokens
