"""Simulate the running batch of the stub engine, with seats, a KV cache and preemptions.

A step is a call, so this module knows no time. It schedules as vLLM does:

- Sequences get seats by priority and in the order of arrival, each when its prompt fits into the KV cache.
- If the cache is full, the batch preempts the newest running sequence. That sequence goes to the
  front of the waiting ones, and its tokens take room in the cache again once it gets a seat.
"""

from collections import deque
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Sequence:
    """One request in the stub.

    Attributes:
        prompt_tokens: Tokens of the prompt.
        max_tokens: Output tokens after which the sequence ends.
        priority: Rank among the waiting sequences; the lowest number goes first.
        num_output_tokens: Output tokens so far; a preemption keeps them.
    """

    prompt_tokens: int
    max_tokens: int
    priority: int = 0
    num_output_tokens: int = 0

    @property
    def num_cached_tokens(self) -> int:
        """Tokens that the sequence holds in the KV cache while it runs."""
        return self.prompt_tokens + self.num_output_tokens


class StubBatch:
    """The running and the waiting sequences.

    Args:
        max_num_seqs: Number of seats.
        kv_cache_tokens: Size of the KV cache in tokens; 0 for no limit.

    Attributes:
        num_preemptions: Number of preemptions.
        num_recomputed_tokens: Tokens that preempted sequences held in the KV cache.
        num_output_tokens: Tokens generated.
        num_cached_tokens: Tokens in the KV cache.
    """

    def __init__(self, max_num_seqs: int, kv_cache_tokens: int = 0) -> None:
        self._max_num_seqs = max_num_seqs
        self._kv_cache_tokens = kv_cache_tokens
        self._waiting: deque[Sequence] = deque()
        self._running: dict[Sequence, None] = {}  # in the order in which they got seats
        self.num_preemptions = self.num_recomputed_tokens = 0
        self.num_output_tokens = self.num_cached_tokens = 0

    @property
    def num_running(self) -> int:
        """Sequences that have a seat."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for a seat."""
        return len(self._waiting)

    @property
    def usage(self) -> float:
        """Used share of the KV cache, from 0 to 1."""
        return self.num_cached_tokens / self._kv_cache_tokens if self._kv_cache_tokens else 0.0

    def add(self, sequence: Sequence) -> None:
        """Add a sequence; it waits, or gets a seat at once if one is free and its prompt fits."""
        later = (i for i, each in enumerate(self._waiting) if each.priority > sequence.priority)
        self._waiting.insert(next(later, len(self._waiting)), sequence)
        self._seat()

    def remove(self, sequence: Sequence) -> None:
        """Remove an aborted sequence; do nothing if it is not in the batch."""
        if sequence in self._running:
            self._release(sequence)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)

    def step(self) -> list[Sequence]:
        """Give each running sequence one token, then give the free seats to waiting sequences.

        Returns:
            The sequences that ended.
        """
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
        """Preempt the newest sequences until each of the others has room for one more token."""
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
