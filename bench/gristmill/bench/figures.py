"""Compute the figures of the tables from the measurements; docs/bench.md explains each."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median, quantiles

from gristmill.bench.bench_report import RequestTiming, SetupRun
from gristmill.bench.setups import ALONE, Setup

HTTP_ERROR = 400
"""Lowest HTTP status of an error answer."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Mean and percentiles, in seconds for all figures here; None if nothing was measured."""

    mean: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None

    @classmethod
    def of(cls, values: Iterable[float]) -> "Distribution":
        """Return mean and percentiles, interpolated between neighbours as numpy does."""
        known = sorted(values)
        if not known:
            return cls()
        cuts = quantiles(known, n=100, method="inclusive") if len(known) > 1 else known * 99
        return cls(mean(known), cuts[49], cuts[94], cuts[98])


@dataclass(frozen=True, slots=True)
class SetupFigures:
    """The figures of one setup over all its rounds.

    Attributes:
        setup: The setup that was measured.
        num_rounds: Number of runs.
        num_requests: Requests of all runs.
        num_failed: Requests without a good answer.
        seconds: Duration of all runs together.
        requests_per_s: Good answers per second.
        output_tokens_per_s: Output tokens of good answers per second.
        by_round: Output tokens per second in each round.
        share: Throughput relative to the engine alone; the median of the rounds' ratios.
        claim_size: Mean number of requests in a batch of the worker.
        closed_by: Number of batches for each reason that closed them, most frequent first.
        running: Mean number of running requests until the last one reached the engine.
        steps: Engine steps of one run; other load on the machine does not change them.
        step_s: Mean seconds of a step; None if the engine does not measure it.
        kv_cache_peak: Highest share of the KV cache in use.
        hit_rate: Share of the looked-up prompt tokens that were in the prefix cache.
        preemptions: Times that the engine pushed a running request back because the KV cache was
            full.
        gpu: Mean busy share of the GPU.
        wait_s: Seconds from the submit to the arrival at the engine.
        ttft_s: Seconds from the arrival at the engine to the first token.
        tpot_s: Mean seconds per token after the first, for each request.
        engine_s: Seconds from the arrival at the engine to its answer.
        e2e_s: Seconds from the submit to the engine's answer.
        fairness: Jain's index of the tokens served to each tenant while all tenants had requests
            waiting.
    """

    setup: Setup
    num_rounds: int
    num_requests: int
    num_failed: int
    seconds: float
    requests_per_s: float
    output_tokens_per_s: float
    by_round: list[float]
    share: float | None
    claim_size: float | None
    closed_by: Mapping[str, int]
    running: float | None
    steps: float | None
    step_s: float | None
    kv_cache_peak: float | None
    hit_rate: float | None
    preemptions: int | None
    gpu: float | None
    wait_s: Distribution
    ttft_s: Distribution
    tpot_s: Distribution
    engine_s: Distribution
    e2e_s: Distribution
    fairness: float | None


def setup_figures(runs: Sequence[SetupRun]) -> list[SetupFigures]:
    """Return the figures of each setup, in the order of their first runs."""
    alone = {run.round: _tokens_per_s(run) for run in runs if run.setup.policy == ALONE}
    setups = dict.fromkeys(run.setup for run in runs)
    return [_row(setup, [run for run in runs if run.setup == setup], alone) for setup in setups]


def _row(setup: Setup, runs: Sequence[SetupRun], alone: Mapping[int, float]) -> SetupFigures:
    requests = [request for run in runs for request in run.requests]
    good = [request for request in requests if is_good(request)]
    seconds = sum(run.seconds for run in runs)
    closed_by = sum((Counter(run.closed_by) for run in runs), Counter[str]())
    ratios = [_tokens_per_s(run) / alone[run.round] for run in runs if alone.get(run.round)]
    samples = [sample for run in runs for sample in run.samples]
    busy = [sample.gpu for sample in samples if sample.gpu is not None]
    return SetupFigures(
        setup=setup,
        num_rounds=len(runs),
        num_requests=len(requests),
        num_failed=len(requests) - len(good),
        seconds=seconds,
        requests_per_s=len(good) / seconds,
        output_tokens_per_s=sum(request.output_tokens for request in good) / seconds,
        by_round=[_tokens_per_s(run) for run in runs],
        share=median(ratios) if ratios else None,
        claim_size=_ratio(sum(run.num_claimed for run in runs), closed_by.total()),
        closed_by=dict(closed_by.most_common()),
        running=_running(runs),
        steps=_total(runs, "steps") / len(runs) if samples else None,
        step_s=_ratio(_total(runs, "step_s"), _total(runs, "steps")) or None,
        kv_cache_peak=max((sample.kv_cache_usage for sample in samples), default=None),
        hit_rate=_ratio(_total(runs, "prefix_cache_hits"), _total(runs, "prefix_cache_queries")),
        preemptions=int(_total(runs, "preemptions")) if samples else None,
        gpu=mean(busy) if busy else None,
        wait_s=Distribution.of(wait_s(request) for request in good),
        ttft_s=Distribution.of(request.ttft_s for request in good if request.ttft_s is not None),
        tpot_s=Distribution.of(each for request in good if (each := tpot_s(request)) is not None),
        engine_s=Distribution.of(engine_s(request) for request in good),
        e2e_s=Distribution.of(e2e_s(request) for request in good),
        fairness=_fairness(runs),
    )


def is_good(request: RequestTiming) -> bool:
    """Return whether the engine answered without an error."""
    return 0 < request.status < HTTP_ERROR


def wait_s(request: RequestTiming) -> float:
    """Return the seconds from submit to engine; the request must have reached the engine."""
    return (request.arrived_s or 0.0) - request.submitted_s


def engine_s(request: RequestTiming) -> float:
    """Return the seconds in the engine; the request must have ended there."""
    return (request.ended_s or 0.0) - (request.arrived_s or 0.0)


def e2e_s(request: RequestTiming) -> float:
    """Return the seconds from submit to answer; the request must have an answer."""
    return (request.ended_s or 0.0) - request.submitted_s


def tpot_s(request: RequestTiming) -> float | None:
    """Return the mean seconds per token after the first.

    Return None without a second token or a known TTFT.
    """
    if request.ttft_s is None or request.output_tokens < 2:
        return None
    return (engine_s(request) - request.ttft_s) / (request.output_tokens - 1)


def jain(shares: Sequence[float]) -> float | None:
    """Return Jain's index: 1 for equal shares, 1/n if one has everything, None if all are 0."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else None


def served_while_backlogged(requests: Sequence[RequestTiming]) -> dict[str, int]:
    """Return each tenant's tokens up to the moment when one tenant has no more waiting requests.

    Prompt and output tokens of a request count when it reaches the engine, because scheduling
    decides that moment.
    """
    waiting = Counter(request.tenant for request in requests)
    served: Counter[str] = Counter()
    for request in sorted(
        (each for each in requests if each.arrived_s is not None),
        key=lambda each: each.arrived_s or 0.0,
    ):
        served[request.tenant] += request.prompt_tokens + request.output_tokens
        waiting[request.tenant] -= 1
        if not waiting[request.tenant]:
            break
    return {tenant: served[tenant] for tenant in waiting}


def _fairness(runs: Sequence[SetupRun]) -> float | None:
    """Return the mean of the runs' indices.

    Return None for one tenant, without a queue, or with a rate.
    """
    indices = []
    for run in runs:
        shares = served_while_backlogged(run.requests)
        if run.setup.policy != ALONE and len(shares) > 1 and _came_at_once(run):
            indices.append(jain(list(shares.values())))
    known = [index for index in indices if index is not None]
    return mean(known) if known else None


def _came_at_once(run: SetupRun) -> bool:
    return len({request.submitted_s for request in run.requests}) == 1


def _tokens_per_s(run: SetupRun) -> float:
    return sum(request.output_tokens for request in run.requests if is_good(request)) / run.seconds


def _running(runs: Sequence[SetupRun]) -> float | None:
    """Return the mean number of running requests until the last request reached the engine."""
    seen = []
    for run in runs:
        if run.setup.policy != ALONE:
            last_s = max((each.arrived_s or 0.0 for each in run.requests), default=0.0)
            seen += [sample.running for sample in run.samples if sample.at_s <= last_s]
    return mean(seen) if seen else None


def _total(runs: Sequence[SetupRun], counter: str) -> float:
    return sum(run.engine.get(counter, 0) for run in runs)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
