"""The arithmetic of the bench, with values that were worked out by hand."""

import pytest

from gristmill.bench.bench_report import EngineSample, RequestTiming, SetupRun
from gristmill.bench.figures import (
    Distribution,
    jain,
    served_while_backlogged,
    setup_figures,
    tpot_s,
)
from gristmill.bench.setups import ALONE, Setup


def timed(
    tenant: str = "a", arrived_s: float = 0, tokens: int = 10, **fields: object
) -> RequestTiming:
    values = {"submitted_s": 0.0, "ended_s": arrived_s + 1, "status": 200, "output_tokens": tokens}
    return RequestTiming(tenant, arrived_s=arrived_s, **(values | fields))  # type: ignore[arg-type]  # names of its own fields


def a_run(
    setup: Setup, seconds: float, requests: list[RequestTiming], **fields: object
) -> SetupRun:
    values = {"round": 1, "samples": []}
    return SetupRun(setup, seconds=seconds, requests=requests, **(values | fields))  # type: ignore[arg-type]  # likewise


def test_percentiles_are_interpolated() -> None:
    spread = Distribution.of(range(101))
    assert (spread.mean, spread.p50, spread.p95, spread.p99) == (50, 50, 95, 99)
    assert Distribution.of([1, 2]).p50 == 1.5
    assert Distribution.of([7]) == Distribution(7, 7, 7, 7)
    assert Distribution.of([]) == Distribution()


@pytest.mark.parametrize(
    ("shares", "index"),
    [([5, 5, 5], 1), ([1, 0, 0, 0], 0.25), ([1, 3], 0.8), ([0, 0], None)],
)
def test_jains_index(shares: list[float], index: float | None) -> None:
    assert jain(shares) == index


def test_tpot_is_the_time_of_each_token_after_the_first() -> None:
    one = timed(arrived_s=2, tokens=11, ended_s=4.5, ttft_s=0.5)
    assert tpot_s(one) == pytest.approx(0.2)
    assert tpot_s(timed(tokens=1, ttft_s=0.5)) is None
    assert tpot_s(timed(tokens=11)) is None


def test_service_counts_until_the_first_tenant_has_none_left() -> None:
    requests = [
        timed("flood", 1, 10, prompt_tokens=5),
        timed("flood", 4, 100),
        timed("quiet", 3, 7),
        timed("quiet", 2, 6),
    ]
    assert served_while_backlogged(requests) == {"flood": 15, "quiet": 13}
    never = [RequestTiming("flood", 0), timed("quiet", 1, 4)]
    assert served_while_backlogged(never) == {"flood": 0, "quiet": 4}


def test_row_pools_its_rounds() -> None:
    setup = Setup("static", size=2)
    good = timed(submitted_s=0, arrived_s=2, ended_s=5, output_tokens=30, ttft_s=1)
    runs = [
        a_run(Setup(ALONE), 1, [timed(output_tokens=30)]),
        a_run(Setup(ALONE), 2, [timed(output_tokens=30)], round=2),
        a_run(
            setup,
            2,
            [good, timed(status=400, output_tokens=0)],
            samples=[
                EngineSample(1, 4, 0, 0.25),
                EngineSample(2, 2, 0, 0.5, 0.5),
                EngineSample(9, 0, 0, 0),
            ],
            num_claimed=2,
            closed_by={"full": 1},
            engine={
                "steps": 9,
                "preemptions": 3,
                "prefix_cache_hits": 30,
                "prefix_cache_queries": 40,
            },
        ),
        a_run(setup, 8, [good, good], round=2, num_claimed=2, closed_by={"drained": 1, "full": 2}),
    ]
    alone, row = setup_figures(runs)
    assert (alone.setup.policy, alone.share, alone.claim_size, alone.running) == (
        ALONE,
        1,
        None,
        None,
    )
    assert (row.num_rounds, row.num_requests, row.num_failed, row.seconds) == (2, 4, 1, 10)
    assert (row.requests_per_s, row.output_tokens_per_s, row.by_round) == (0.3, 9, [15, 7.5])
    assert row.share == pytest.approx((15 / 30 + 7.5 / 15) / 2)
    assert (row.claim_size, row.closed_by) == (1, {"full": 3, "drained": 1})
    assert (row.running, row.kv_cache_peak, row.gpu) == (3, 0.5, 0.5)
    assert (row.hit_rate, row.preemptions, row.steps) == (0.75, 3, 4.5)
    assert (row.wait_s.p50, row.ttft_s.p50, row.engine_s.p50, row.e2e_s.p50) == (2, 1, 3, 5)
    assert row.tpot_s.p50 == pytest.approx(2 / 29)
    assert row.fairness is None  # one tenant


def test_row_without_counters_shows_nothing_rather_than_zeros() -> None:
    (row,) = setup_figures([a_run(Setup("static"), 1, [timed()], engine={"preemptions": 0})])
    assert (row.running, row.kv_cache_peak, row.hit_rate, row.preemptions, row.gpu) == (None,) * 5
    assert (row.share, row.claim_size, row.ttft_s.p50, row.tpot_s.p50) == (None,) * 4


def test_fairness_needs_tenants_that_came_at_once() -> None:
    both = [timed("a", 1, 10), timed("b", 2, 10), timed("a", 3, 10)]
    (row,) = setup_figures([a_run(Setup("static"), 1, both)])
    assert row.fairness == 1
    late = [timed("a", 1, 10), timed("b", 2, 10, submitted_s=0.5)]
    (row,) = setup_figures([a_run(Setup("static"), 1, late)])
    assert row.fairness is None
