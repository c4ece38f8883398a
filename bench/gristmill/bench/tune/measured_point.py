"""The measurement of one candidate, or the reason why it failed."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any, Self

from gristmill.bench.tune.candidates import Candidate, Setting

FULL_STEP = 0.9
"""Mean share of `max_num_batched_tokens` in a step from which there is no room for another
prompt."""


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """The figures of one candidate, or the reason why there are no figures.

    The figures of several engines are sums, except those of a step and of the KV cache, which are
    of one engine.

    Attributes:
        candidate: The measured candidate.
        failure: Reason why there are no figures; "" if there are.
        output_tokens_per_s: Tokens generated per second while the engine was full.
        prompt_tokens_per_s: Prompt tokens prefilled per second in that window.
        requests_per_s: Requests answered per second in that window.
        p50_s: Median seconds in the engine of the answered requests; None without an answer.
        p95_s: 95th percentile of the same seconds.
        running: Mean number of running requests in one engine.
        kv_cache_peak: Largest used share of the KV cache, 0 to 1.
        preemptions: Times that the engine pushed a running request back because the KV cache was
            full.
        tokens_per_step: Mean tokens of one engine step, prompts and outputs.
        num_requests: Requests that ended in the window.
        num_failed: Requests of these that failed.
        seconds: Length of the window, after the ramp-up.
        is_settled: False if, before the window, fewer requests ended than half the number in
            flight. The engine then mostly prefills, and the figures say little.
        gulp_places: Mean free places that began a gulp; 0 without gulps.
        runs: Number of measurements. Figures are means, counts are sums, the KV peak is the
            highest.
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
    gulp_places: float = 0.0
    runs: int = 1

    @property
    def tokens_per_s(self) -> float:
        """Output tokens per second; prompt tokens if the model generates no tokens."""
        return self.output_tokens_per_s or self.prompt_tokens_per_s

    @property
    def has_full_cache(self) -> bool:
        """True if the KV cache limited the running requests, not `max_num_seqs`."""
        is_short = self.running < 0.9 * self.candidate.setting.max_num_seqs
        return is_short and (self.preemptions > 0 or self.kv_cache_peak > 0.95)

    @property
    def has_full_steps(self) -> bool:
        """True if `max_num_batched_tokens` limited the running requests, not `max_num_seqs`."""
        limit = self.candidate.setting.max_num_batched_tokens
        return self.tokens_per_step >= FULL_STEP * limit and not self.has_full_cache

    def merged(self, other: "MeasuredPoint") -> "MeasuredPoint":
        """Return two measurements of one candidate as one.

        If one failed, the result is that failure. If only one settled, the result has its figures.
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

        return MeasuredPoint(
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
            gulp_places=mean(self.gulp_places, other.gulp_places),
            runs=runs,
        )

    def as_json(self) -> dict[str, Any]:
        """Return every figure, together with the candidate's setting and how it was fed."""
        fields = asdict(self)
        candidate = fields.pop("candidate")
        return {**candidate.pop("setting"), **candidate, **fields}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Self:
        """Return the point that `as_json` wrote."""
        rest = dict(fields)
        setting = Setting(**{name: rest.pop(name) for name in Setting.__slots__})
        names = [name for name in Candidate.__slots__ if name != "setting"]
        candidate = Candidate(setting, **{name: rest.pop(name) for name in names})
        return replace(cls(candidate), **rest)


def together(candidate: Candidate, points: Sequence[MeasuredPoint]) -> MeasuredPoint:
    """Return one point for engines that were measured at the same time.

    Args:
        candidate: The engines together.
        points: A point for each engine. If one failed, the result is its failure.
    """
    if failed := next((point for point in points if point.failure), None):
        return replace(failed, candidate=candidate)
    p50s = [point.p50_s for point in points if point.p50_s is not None]
    p95s = [point.p95_s for point in points if point.p95_s is not None]
    return MeasuredPoint(
        candidate,
        output_tokens_per_s=sum(point.output_tokens_per_s for point in points),
        prompt_tokens_per_s=sum(point.prompt_tokens_per_s for point in points),
        requests_per_s=sum(point.requests_per_s for point in points),
        p50_s=fmean(p50s) if p50s else None,
        p95_s=max(p95s, default=None),
        running=fmean(point.running for point in points),
        kv_cache_peak=max(point.kv_cache_peak for point in points),
        preemptions=sum(point.preemptions for point in points),
        tokens_per_step=fmean(point.tokens_per_step for point in points),
        num_requests=sum(point.num_requests for point in points),
        num_failed=sum(point.num_failed for point in points),
        seconds=max(point.seconds for point in points),
        is_settled=all(point.is_settled for point in points),
        gulp_places=fmean(point.gulp_places for point in points),
    )
