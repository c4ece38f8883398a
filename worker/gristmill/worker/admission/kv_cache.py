"""Keep account of the engine's KV cache: one `Promise` for each request in the engine.

`room.py` calls it before each claim. `token_estimates.py`, `projection.py` and `overcommit.py` are
its pure parts.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import ceil
from operator import add

from gristmill.shared.records import Record
from gristmill.worker import metrics
from gristmill.worker.admission.gulps import MAX_WAIT_S
from gristmill.worker.admission.overcommit import Look, Overcommit
from gristmill.worker.admission.projection import Course, num_fitting
from gristmill.worker.admission.token_estimates import SeenTokens, Tokens
from gristmill.worker.engine.interface import EngineStats, Response

OVERDUE_SHARE = 0.5
"""Expected remaining output of a request past its estimate, as a share of its output so far. It is
large because lengths have long tails."""

REFILL_SHARE = 1 / 20
"""Share of the held tokens. Once the cache is full, the next claim waits until requests with so many
tokens have ended."""


def is_high(record: Record) -> bool:
    """Return whether a request is of the lane `high`, for which places and tokens may be kept."""
    return record.priority == "high"


@dataclass(slots=True, eq=False)
class Promise:
    """The expected use of the cache by one request in the engine.

    Attributes:
        estimated: Tokens by the request's header.
        entered_at: Engine steps, estimated from output tokens, when the request entered.
    """

    estimated: Tokens
    entered_at: float


class CacheAccount:
    """Keeps account of one engine's cache.

    Args:
        size: Tokens that the cache holds.
        kept_share: Share of them that is kept for requests of the lane `high`, 0 to 0.5.

    Attributes:
        refill_share: Share of the held tokens that must end before a full cache takes more.
    """

    def __init__(self, size: int, kept_share: float = 0.0) -> None:
        self.refill_share = REFILL_SHARE
        self._size = size
        self._kept_share = kept_share
        self._promises: set[Promise] = set()
        self._held = Tokens()
        self._held_by_high = Tokens()
        self._seen = SeenTokens()
        self._overcommit = Overcommit()
        self._last = EngineStats()
        self._num_ended = 0
        self._num_steps = 0.0
        self._full_since_s: float | None = None
        self._ended_since_full = Tokens()

    def promise(self, record: Record) -> Callable[[], None]:
        """Note that a request enters the engine; return the function to call when it leaves."""
        promise = Promise(self._estimated(record), self._num_steps)
        by_high = promise.estimated if is_high(record) else Tokens()
        self._promises.add(promise)
        self._held += promise.estimated
        self._held_by_high += by_high

        def release() -> None:
            self._promises.remove(promise)
            self._held -= promise.estimated
            self._held_by_high -= by_high
            self._num_ended += 1
            self._ended_since_full += promise.estimated

        return release

    def learn(self, record: Record, response: Response) -> None:
        """Learn how many tokens a request took; shared (cached) prompt tokens do not count."""
        own_prompt_tokens = max(0, response.prompt_tokens - response.cached_tokens)
        counted = Tokens(own_prompt_tokens, response.output_tokens)
        self._seen = self._seen.after(self._estimated(record), counted)

    def look(self, stats: EngineStats) -> None:
        """Update the account from the engine's counters, which restart at zero with the engine."""
        num_tokens = max(0, stats.output_tokens - self._last.output_tokens)
        self._num_steps += num_tokens / max(1, stats.running)
        self._overcommit = self._overcommit.after(
            Look(
                num_held=len(self._promises),
                num_ended=self._num_ended,
                num_preempted=max(0, stats.preemptions - self._last.preemptions),
                usage=stats.kv_cache_usage / (1 - self._kept_share),
                is_full=self._full_since_s is not None,
            )
        )
        self._last, self._num_ended = stats, 0
        metrics.admission_budget_tokens.set(self._budget)
        metrics.committed_tokens.set(self._seen.corrected(self._held).total)

    @property
    def mean_output_tokens(self) -> float:
        """Mean output tokens of the ended requests; 0 if none has ended."""
        return self._seen.counted.output

    def free_tokens(self, gathered: Sequence[Record], num_free: int, now_s: float) -> int:
        """Return how many tokens a claim of all lanes may take, by the headers' estimates; 0 forbids a claim.

        Args:
            gathered: Records of requests that are claimed and not yet in the engine.
            num_free: Requests for which the engine has places.
            now_s: Monotonic time in seconds.
        """
        if not (self._promises or gathered):
            self._full_since_s = None
            return ceil(self._seen.uncorrected(self._budget * (1 - self._kept_share)))
        if self._full_since_s is not None and not self._may_look_again(now_s - self._full_since_s):
            return 0
        num_tokens = self.fitting_tokens(gathered, num_free, keep=True)
        self._full_since_s = None if num_tokens else now_s
        self._ended_since_full = Tokens()
        return num_tokens

    def fitting_tokens(self, gathered: Sequence[Record], num_free: int, *, keep: bool) -> int:
        """Return how many tokens fit now, without the wait of a full cache; see `free_tokens`.

        Args:
            gathered: Records of requests that are claimed and not yet in the engine.
            num_free: Requests for which the engine has places.
            keep: True to leave the tokens that are kept for the lane `high`.
        """
        estimates = [self._estimated(record) for record in gathered]
        num_held = len(self._promises) + len(estimates)
        taken = self._seen.corrected(reduce(add, estimates, self._held))
        each = taken.total / max(1, num_held)
        budget = self._budget - (self._kept_tokens(gathered, each) if keep else 0)
        free = budget - taken.total
        if free < num_free * each:
            # The sum of all final lengths exceeds the budget, so project the actual overlap.
            newcomer = Course(taken.output / num_held, taken.prompt / num_held)
            free = each * num_fitting(self._courses(estimates), newcomer, budget)
        return 0 if free < each else ceil(self._seen.uncorrected(free))

    def _kept_tokens(self, gathered: Sequence[Record], each: float) -> float:
        """Return the kept tokens that no request of the lane `high` uses.

        They hold at least one request of the mean length, unless it needs more than half of the cache.

        Args:
            gathered: Records of requests that are claimed and not yet in the engine.
            each: Mean tokens of a request.
        """
        if not self._kept_share:
            return 0
        kept = min(max(self._kept_share * self._budget, each), self._budget / 2)
        high = (self._estimated(record) for record in gathered if is_high(record))
        return max(0, kept - self._seen.corrected(reduce(add, high, self._held_by_high)).total)

    def _may_look_again(self, waited_s: float) -> bool:
        is_enough = self._ended_since_full.total >= self.refill_share * self._held.total
        return is_enough or waited_s >= MAX_WAIT_S

    @property
    def _budget(self) -> float:
        return self._size * self._overcommit.factor

    def _courses(self, gathered: Iterable[Tokens]) -> Iterable[Course]:
        """Yield the course of each request in the engine, then of each gathered request."""
        shares = self._seen.shares
        prompt_share, output_share = shares.prompt, shares.output
        for promise in self._promises:
            expected = promise.estimated.output * output_share
            limit = max(promise.estimated.output, expected)
            num_done = min(self._num_steps - promise.entered_at, limit)
            remaining = max(expected - num_done, OVERDUE_SHARE * num_done)
            held = prompt_share * promise.estimated.prompt + num_done
            yield Course(min(remaining, limit - num_done), held)
        for estimated in gathered:
            yield Course(output_share * estimated.output, prompt_share * estimated.prompt)

    def _estimated(self, record: Record) -> Tokens:
        """Return the header's estimate, at most the cache's size: no request can use more."""
        return Tokens(record.prompt_tokens, record.max_tokens).clipped(self._size)
