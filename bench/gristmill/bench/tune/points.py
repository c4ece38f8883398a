"""The nouns of a search: what can be set, what was measured, and what is wanted."""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from gristmill.worker.settings import SPARE

FULL_STEP = 0.9
"""Steps that hold this share of their tokens on average have no room for another request's prompt."""


@dataclass(frozen=True, slots=True, order=True)
class Setting:
    """What an engine is started with; another one costs another start."""

    max_num_seqs: int
    max_num_batched_tokens: int

    @property
    def full(self) -> int:
        """How many in flight fill this engine: what a worker takes unless told (`in_flight_limit`)."""
        return math.ceil(SPARE * self.max_num_seqs)

    def with_sequences(self, number: int) -> "Setting":
        """Return the same with another `max_num_seqs`."""
        return replace(self, max_num_seqs=number)

    def __str__(self) -> str:
        return f"{self.max_num_seqs} sequences, {self.max_num_batched_tokens} tokens a step"


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """What can be measured: an engine with so many requests in flight."""

    setting: Setting
    in_flight: int

    @property
    def filled(self) -> int:
        """The `max_num_seqs` that so many in flight keep full: an engine of no more runs alike."""
        return max(1, min(int(self.in_flight / SPARE), self.setting.max_num_seqs))

    def __str__(self) -> str:
        return f"{self.setting}, {self.in_flight} in flight"


@dataclass(frozen=True, slots=True)
class Point:
    """One candidate, measured; or why it could not be.

    Attributes:
        candidate: What was measured.
        failure: Why there are no figures; "" for none.
        output_tokens_per_s: Generated while the engine was kept full.
        prompt_tokens_per_s: Likewise prefilled.
        requests_per_s: Likewise answered.
        p50_s: Of the time in the engine, over the requests that ended meanwhile; None if none did.
        p95_s: Likewise.
        running: Mean of the requests in the engine's batch.
        kv_cache_peak: Largest used share of the KV cache, 0 to 1.
        preemptions: Times a running request was pushed back for want of KV cache.
        tokens_per_step: Mean tokens of one engine step, prompts and outputs.
        num_requests: How many ended meanwhile.
        num_failed: How many of them were refused.
        seconds: How long it was measured, after the ramp-up.
        is_settled: Whether half as many as are in flight had ended by then; before that the engine
            mostly prefills, and the figures say little.
        runs: How often it was measured; the figures are the mean, counts the sum, the KV peak the highest.
    """

    candidate: Candidate
    failure: str = ""
    output_tokens_per_s: float = 0.0
    prompt_tokens_per_s: float = 0.0
    requests_per_s: float = 0.0
    p50_s: float | None = None
    p95_s: float | None = None
    running: float = 0.0
    kv_cache_peak: float = 0.0
    preemptions: int = 0
    tokens_per_step: float = 0.0
    num_requests: int = 0
    num_failed: int = 0
    seconds: float = 0.0
    is_settled: bool = True
    runs: int = 1

    @property
    def tokens_per_s(self) -> float:
        """Output tokens a second; prompt tokens where the model generates none."""
        return self.output_tokens_per_s or self.prompt_tokens_per_s

    @property
    def has_full_cache(self) -> bool:
        """Whether the KV cache, and not `max_num_seqs`, limited what ran."""
        is_short = self.running < 0.9 * self.candidate.setting.max_num_seqs
        return is_short and (self.preemptions > 0 or self.kv_cache_peak > 0.95)

    @property
    def has_full_steps(self) -> bool:
        """Whether `max_num_batched_tokens`, and not `max_num_seqs`, limited what ran."""
        limit = self.candidate.setting.max_num_batched_tokens
        return self.tokens_per_step >= FULL_STEP * limit and not self.has_full_cache

    def merged(self, other: "Point") -> "Point":
        """Return two measurements of one candidate as one.

        One that failed makes both fail; one that did not settle says nothing beside one that did.
        """
        if self.failure or other.failure:
            return self if self.failure else other
        runs = self.runs + other.runs
        if self.is_settled != other.is_settled:
            return replace(self if self.is_settled else other, runs=runs)

        def mean(first: float, second: float) -> float:
            return (first * self.runs + second * other.runs) / runs

        def mean_of_known(first: float | None, second: float | None) -> float | None:
            return second if first is None else first if second is None else mean(first, second)

        return Point(
            self.candidate,
            output_tokens_per_s=mean(self.output_tokens_per_s, other.output_tokens_per_s),
            prompt_tokens_per_s=mean(self.prompt_tokens_per_s, other.prompt_tokens_per_s),
            requests_per_s=mean(self.requests_per_s, other.requests_per_s),
            p50_s=mean_of_known(self.p50_s, other.p50_s),
            p95_s=mean_of_known(self.p95_s, other.p95_s),
            running=mean(self.running, other.running),
            kv_cache_peak=max(self.kv_cache_peak, other.kv_cache_peak),
            preemptions=self.preemptions + other.preemptions,
            tokens_per_step=mean(self.tokens_per_step, other.tokens_per_step),
            num_requests=self.num_requests + other.num_requests,
            num_failed=self.num_failed + other.num_failed,
            seconds=self.seconds + other.seconds,
            is_settled=self.is_settled,
            runs=runs,
        )

    def as_json(self) -> dict[str, Any]:
        """Return every figure, the candidate's beside them."""
        fields = asdict(self)
        candidate = fields.pop("candidate")
        return {**candidate["setting"], "in_flight": candidate["in_flight"], **fields}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Self:
        """Return what `as_json` wrote."""
        rest = dict(fields)
        setting = Setting(rest.pop("max_num_seqs"), rest.pop("max_num_batched_tokens"))
        return replace(cls(Candidate(setting, rest.pop("in_flight"))), **rest)


@dataclass(frozen=True, slots=True)
class Goal:
    """What is wanted: throughput, or throughput as long as the p95 keeps a bound.

    Attributes:
        max_p95_s: The bound, in seconds from a request's claim to its answer; None for none.
    """

    max_p95_s: float | None = None

    def allows(self, point: Point) -> bool:
        """Return whether a point may be chosen at all."""
        if point.failure or not point.is_settled:
            return False
        if self.max_p95_s is None:
            return True
        return point.p95_s is not None and point.p95_s <= self.max_p95_s

    def value(self, point: Point) -> float:
        """Return what is to be as large as possible; 0 for what may not be chosen."""
        return point.tokens_per_s if self.allows(point) else 0.0

    def best(self, points: list[Point]) -> Point | None:
        """Return the best; among those within `TIE` of it the one with the least in flight, measured most often."""
        highest = max(map(self.value, points), default=0.0)
        ties = [point for point in points if highest and self.value(point) >= TIE * highest]
        return min(ties, key=lambda each: (each.candidate.in_flight, -each.runs), default=None)


TIE = 0.99
"""Two throughputs as close as this are the same: short runs tell no finer."""
