"""Decide when failures show that a worker, and not its requests, is broken.

`worker_brake.py` calls this module, which knows neither Redis nor the engine and gets every time as
an argument. docs/decisions/0018-failure-brake.md gives the reasons for the numbers.
"""

from collections import Counter, deque
from collections.abc import Sequence
from typing import Literal, NamedTuple

from gristmill.worker.failures import Failure

WINDOW = 32
"""Latest outcomes that count. Few, because those that fail before the worker is braked are lost."""

MIN_OUTCOMES = 20
"""Outcomes without which nothing is proven."""

WINDOW_S = 60.0
"""Age in seconds at which an outcome counts no more: slow failures do not empty a queue."""

FAILED_SHARE = 0.95
"""Share of the outcomes that must have failed, if requests are not their cause."""

LARGEST_SHARE = 0.75
"""Largest share of one queue or tenant in a mixed load. Two tenants of weights 3 and 1 are mixed; a
bad file and one stray request are not."""

LARGEST_SHARE_OF_BATCH = 0.45
"""Largest share of one batch in a mixed load of one tenant. Two bad files of the same script are not
mixed; three batches are."""

NUM_TRIES = 5
"""Failed tries that can disprove the cause: 31 s with the default pauses."""

MAX_DOUBLINGS = 16
"""Largest exponent of the pause, so that it cannot overflow; `max_s` bounds the pause before."""


class Source(NamedTuple):
    """Where a request came from; see `is_mixed`."""

    queue: str
    tenant: str
    batch: str


class Outcome(NamedTuple):
    """The end of one run.

    Attributes:
        at_s: Moment of the end, in monotonic seconds.
        source: Source of the request.
        failure: The failure; None for a success.
    """

    at_s: float
    source: Source
    failure: Failure | None


class Cause(NamedTuple):
    """Why a worker is braked.

    Attributes:
        failure: The last failure of the most frequent kind.
        num_failed: Failures in the window that count.
        num_outcomes: Outcomes in the window.
    """

    failure: Failure
    num_failed: int
    num_outcomes: int


Change = Literal["braked", "succeeded", "disproved"]
"""Change of the brake: the worker is braked now, a try succeeded, or the tries no longer show the cause."""


def is_mixed(sources: Sequence[Source]) -> bool:
    """Return whether requests are so different that they cannot have one fault in common.

    They are if they came from different queues, tenants or batches, and none of these had too large
    a share of them. Different endpoints or models prove nothing: one bad file may name both.
    """
    shares = [max(Counter(column).values()) / len(sources) for column in zip(*sources, strict=True)]
    limits = (LARGEST_SHARE, LARGEST_SHARE, LARGEST_SHARE_OF_BATCH)
    return any(share <= limit for share, limit in zip(shares, limits, strict=True))


def cause_of(outcomes: Sequence[Outcome]) -> Cause | None:
    """Return why a worker with these outcomes must stop claiming, or None.

    Failures that the requests may have caused themselves (4xx) count only if every outcome is a
    failure and the load is mixed. Others count from `FAILED_SHARE`, whatever their kinds.
    """
    if len(outcomes) < MIN_OUTCOMES:
        return None
    failures = [outcome.failure for outcome in outcomes if outcome.failure]
    of_engine = [failure for failure in failures if not failure.may_be_own]
    if len(of_engine) >= FAILED_SHARE * len(outcomes):
        return Cause(_typical(of_engine), len(of_engine), len(outcomes))
    if len(failures) == len(outcomes) and is_mixed([each.source for each in outcomes]):
        return Cause(_typical(failures), len(failures), len(outcomes))
    return None


def counts_for(failure: Failure, cause: Failure) -> bool:
    """Return whether a failure can have the same cause: the engine, or anything in a mixed load."""
    return cause.may_be_own or not failure.may_be_own


def _typical(failures: Sequence[Failure]) -> Failure:
    """Return the last failure of the most frequent kind."""
    ((kind, _),) = Counter(failure.kind for failure in failures).most_common(1)
    return [failure for failure in failures if failure.kind == kind][-1]


class FailureBrake:
    """The brake of one worker. While it is on, the worker tries single requests.

    Args:
        base_s: Seconds from the start of the brake to the first try; each failed try doubles the pause.
        max_s: Longest pause in seconds.

    Attributes:
        cause: Why the worker is braked; None while it is not.
        num_tries: Tries since the worker is braked.
    """

    def __init__(self, base_s: float, max_s: float) -> None:
        self._base_s, self._max_s = base_s, max_s
        self._window: deque[Outcome] = deque(maxlen=WINDOW)
        self._tries: deque[Outcome] = deque(maxlen=NUM_TRIES)
        self._counts_from_s = 0.0
        self._next_try_s = 0.0
        self.cause: Cause | None = None
        self.num_tries = 0

    @property
    def pause_s(self) -> float:
        """Seconds to wait after the latest try."""
        return min(self._max_s, self._base_s * 2.0 ** min(self.num_tries, MAX_DOUBLINGS))

    def note(self, outcome: Outcome, claimed_at_s: float) -> Change | None:
        """Count an outcome that is no try; return whether it brakes the worker.

        Requests claimed before the last change of the brake do not count. They say how the engine
        was then.
        """
        if self.cause or claimed_at_s < self._counts_from_s:
            return None
        self._window.append(outcome)
        while self._window[0].at_s < outcome.at_s - WINDOW_S:
            self._window.popleft()
        self.cause = cause_of(self._window) if outcome.failure else None
        if self.cause is None:
            return None
        self._change(outcome.at_s)
        return "braked"

    def note_try(self, outcome: Outcome) -> Change | None:
        """Count the outcome of a try; return whether it ends the brake."""
        if self.cause is None:
            return None
        self._tries.append(outcome)
        self._next_try_s = outcome.at_s + self.pause_s
        if outcome.failure is None:
            return self._end(outcome.at_s, "succeeded")
        if len(self._tries) == NUM_TRIES and not self._tries_show(self.cause.failure):
            return self._end(outcome.at_s, "disproved")
        return None

    def may_try(self, now_s: float) -> bool:
        """Return whether the pause before the next try is over."""
        return now_s >= self._next_try_s

    def begin_try(self, now_s: float) -> None:
        """Count a try, and lengthen the pause. The pause runs again from the try's outcome."""
        self.num_tries += 1
        self._next_try_s = now_s + self.pause_s

    def void_try(self, now_s: float) -> None:
        """Allow another try at once: the last one never reached the engine."""
        self.num_tries = max(0, self.num_tries - 1)
        self._next_try_s = now_s

    def forget(self, now_s: float) -> None:
        """Forget the outcomes, and allow a try at once: the engine was restarted."""
        self._change(now_s)
        self._next_try_s = now_s

    def _tries_show(self, cause: Failure) -> bool:
        """Return whether the latest tries failed as the cause says.

        A 4xx of a load that is not mixed any more, or after errors of the engine, can have its cause
        in the requests. A single bad file must not hold a worker.
        """
        shows = any(each.failure and counts_for(each.failure, cause) for each in self._tries)
        return shows and (not cause.may_be_own or is_mixed([each.source for each in self._tries]))

    def _end(self, now_s: float, change: Change) -> Change:
        self.cause = None
        self._change(now_s)
        return change

    def _change(self, now_s: float) -> None:
        self._window.clear()
        self._tries.clear()
        self._counts_from_s = now_s
        self.num_tries = 0
        self._next_try_s = now_s + self.pause_s
