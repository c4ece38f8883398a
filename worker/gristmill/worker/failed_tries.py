"""Decide when a try that the engine did not serve counts as an attempt. The rules are pure.

The runner calls this module for each `EngineUnavailable`. A server that fails for everybody proves
nothing against a request. docs/decisions/0004-verdicts.md gives the rule and its reasons.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

MIN_REFUSALS = 5
"""Refusals (429, 503) in a row that may count as one attempt. An overloaded server refuses requests
that it would serve later."""

MAX_REQUESTS = 10_000
"""Requests to remember. The oldest is forgotten first, so at worst it gets more tries."""

RequestKey = tuple[str, str]
"""Queue and id of a request."""


class Try(NamedTuple):
    """One failed try of a request.

    Attributes:
        number: Failed tries of the request on this worker; the wait before the next one grows with it.
        counts: True if the try counts as an attempt.
    """

    number: int
    counts: bool


@dataclass(slots=True)
class _Tries:
    first_s: float
    since_s: float  # moment of the last try that counted, or else of the first one
    num_uncounted: int = 0
    num_all: int = 0


class FailedTries:
    """The failed tries of the requests of one worker.

    Args:
        min_refused_s: Seconds for which an engine must refuse a request before that counts.
    """

    def __init__(self, min_refused_s: float) -> None:
        self._min_refused_s = min_refused_s
        self._served_s = -math.inf
        self._is_serving = False
        self._of: dict[RequestKey, _Tries] = {}

    def note_served(self, now_s: float) -> None:
        """Note that the engine answered some request."""
        self._served_s, self._is_serving = now_s, True

    def note(self, key: RequestKey, *, is_refusal: bool, now_s: float) -> Try:
        """Note a failed try of a request, and return whether it counts.

        A request is suspicious if the engine served others after the request's first failure. If
        another one fails, the engine may fail for everybody, and nothing counts until it serves
        again.

        Args:
            key: The request.
            is_refusal: True if the engine refused the request before it ran. Then only
                `MIN_REFUSALS` refusals over `min_refused_s` count, as one attempt.
            now_s: Moment of the failure, in monotonic seconds.
        """
        tries = self._of.pop(key, None) or _Tries(now_s, now_s)
        is_suspicious = tries.first_s < self._served_s
        self._is_serving = self._is_serving and is_suspicious
        tries.num_uncounted += 1
        tries.num_all += 1
        counts = self._is_serving and (not is_refusal or self._is_refused_long(tries, now_s))
        if counts:
            tries.since_s, tries.num_uncounted = now_s, 0
        self._of[key] = tries
        if len(self._of) > MAX_REQUESTS:
            del self._of[next(iter(self._of))]
        return Try(tries.num_all, counts)

    def forget(self, key: RequestKey) -> None:
        """Forget a request that has ended."""
        self._of.pop(key, None)

    def _is_refused_long(self, tries: _Tries, now_s: float) -> bool:
        is_long = now_s - tries.since_s >= self._min_refused_s
        return is_long and tries.num_uncounted >= MIN_REFUSALS
