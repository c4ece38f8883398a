"""`gristmill bench` with the stub engine on a true server: what it measures is what happened."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gristmill.bench.bench_report import BenchReport, SetupRun
from gristmill.bench.commands import bench
from gristmill.bench.figures import setup_figures
from gristmill.bench.loads import named
from gristmill.bench.run_bench import BenchOptions, run_bench
from gristmill.bench.setups import ALONE
from gristmill.local.processes import free_port
from gristmill.shared.connection import connect
from gristmill.shared.errors import (
    EngineDied,
    GristmillError,
    InvalidRequest,
    RedisUnreachable,
    SettingsError,
)
from gristmill.worker.engine import EngineInfo, Response, StubEngine

Bench = Callable[..., BenchReport]


@pytest.fixture
def measured(redis_url: str, tmp_path: Path) -> Bench:
    """Run a small bench on a stub."""

    def run(engine: StubEngine | None = None, **fields: Any) -> BenchReport:
        values: dict[str, Any] = {
            "load": "uniform",
            "requests": 12,
            "scale": 0.1,
            "seed": 0,
            "rate": None,
            "policies": ["continuous"],
            "schedulings": [],
            "sizes": [],
            "refills": [],
            "batch_timeout_ms": 10.0,
            "num_rounds": 1,
            "num_warm_up": 2,
            "out": tmp_path / "bench",
            "redis_url": redis_url,
            "vllm_url": None,
            "engine_argv": (),
            "command": "gristmill bench",
        }
        engine = engine or StubEngine(token_delay_s=0.001, max_num_seqs=8)
        return run_bench(BenchOptions(**(values | fields)), engine)

    return run


def most_at_once(run: SetupRun) -> int:
    """Return how many requests were in the engine at the same time."""
    ends = [(each.ended_s or 0, -1) for each in run.requests]
    steps = sorted([(each.arrived_s or 0, 1) for each in run.requests] + ends)
    return max(sum(change for _, change in steps[: i + 1]) for i in range(len(steps)))


def test_every_setup_does_the_same_work_and_all_of_it(measured: Bench, tmp_path: Path) -> None:
    report = measured(policies=["sequential", "static", "continuous"], sizes=[4], num_rounds=2)
    assert [run.setup.label for run in report.runs] == [
        *(ALONE, "sequential", "static x4", "continuous x4"),
        *("continuous x4", "static x4", "sequential", ALONE),
    ]
    for run in report.runs:
        load = named("uniform", 12, seed=run.round, scale=0.1)
        assert [each.output_tokens for each in run.requests] == [each.max_tokens for each in load]
        assert {each.status for each in run.requests} == {200}
        assert all(0 <= (each.arrived_s or -1) <= (each.ended_s or -1) for each in run.requests)
        assert run.seconds + 0.0001 >= max(each.ended_s or 0 for each in run.requests)  # rounded
        assert run.engine["output_tokens"] == sum(each.max_tokens for each in load)
        assert run.num_claimed == (0 if run.setup.policy == ALONE else 12)
    assert BenchReport.load_from(tmp_path / "bench" / "results.json").runs == report.runs
    assert {path.name for path in (tmp_path / "bench").iterdir()} >= {"table.md", "bench.svg"}


def test_each_policy_is_run_as_the_policy_that_it_is(measured: Bench) -> None:
    report = measured(policies=["sequential", "static", "continuous"], sizes=[4], seed=3)
    alone, sequential, static, continuous = report.runs
    assert most_at_once(alone) == 12
    assert most_at_once(sequential) == 1
    assert most_at_once(static) == 4
    assert most_at_once(continuous) == 4
    in_order = sorted(static.requests, key=lambda each: each.arrived_s or 0)
    for start in (4, 8):  # the barrier
        before = max(each.ended_s or 0 for each in in_order[start - 4 : start])
        assert before <= (in_order[start].arrived_s or 0)
    claims = {row.setup.policy: row.claim_size for row in setup_figures(report.runs)}
    assert (claims["sequential"], claims["static"]) == (1, 4)


def test_each_scheduling_orders_the_whole_load(measured: Bench) -> None:
    report = measured(
        load="bimodal", requests=20, policies=["sequential"], schedulings=["fcfs", "sjf"]
    )
    load = named("bimodal", 20, seed=1, scale=0.1)
    _, fcfs, sjf = (
        sorted(range(20), key=lambda i, run=run: run.requests[i].arrived_s)  # type: ignore[misc]  # bound now
        for run in report.runs
    )
    assert fcfs == list(range(20))
    longest = {i for i in range(20) if load[i].prompt_tokens >= 76}
    assert set(sjf[-len(longest) :]) == longest
    assert [row.setup.label for row in setup_figures(report.runs)[1:]] == [
        "sequential, fcfs",
        "sequential, sjf",
    ]


def test_fairness_tells_fair_from_first_come(measured: Bench) -> None:
    report = measured(
        load="tenants", requests=56, policies=["sequential"], schedulings=["fcfs", "fair"]
    )
    _, fcfs, fair = setup_figures(report.runs)
    assert fcfs.fairness == pytest.approx(1 / 8)
    assert fair.fairness is not None
    assert fair.fairness > 0.8  # a claim is one request here, so tenants differ by no more


def test_arrivals_at_a_rate_are_due_one_by_one(measured: Bench) -> None:
    report = measured(rate=100.0)
    for run in report.runs:
        due_s = [each.submitted_s for each in run.requests]
        assert due_s == sorted(set(due_s))
        assert all((each.arrived_s or 0) >= each.submitted_s for each in run.requests)
    assert report.runs[0].requests[0].submitted_s == report.runs[1].requests[0].submitted_s


def test_nothing_is_left_in_redis(measured: Bench, redis_url: str) -> None:
    async def keys() -> list[bytes]:
        redis = connect(redis_url)
        try:
            return [key async for key in redis.scan_iter(match="gm:{bench-*")]
        finally:
            await redis.aclose()

    measured()
    assert asyncio.run(keys()) == []


def test_users_file_is_run(measured: Bench, tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "a b", "max_tokens": 3}\n{"prompt": "a b", "max_tokens": 3}\n')
    report = measured(load=str(path), requests=None)
    assert [each.output_tokens for each in report.runs[1].requests] == [3, 3]
    assert report.load["num_requests"] == 2


def test_failures_are_counted_and_the_first_is_told(
    measured: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mixed.jsonl"
    path.write_text('{"prompt": "a", "max_tokens": 3}\n{"input": "no chat"}\n')
    report = measured(load=str(path), requests=None)
    assert [row.num_failed for row in setup_figures(report.runs)] == [1, 1]
    assert "continuous, round 1: some failed, the first with" in capsys.readouterr().err


def test_load_that_the_engine_refuses_ends_the_bench(measured: Bench, tmp_path: Path) -> None:
    path = tmp_path / "embeddings.jsonl"
    path.write_text('{"input": "no chat"}\n')
    with pytest.raises(GristmillError, match="the engine refuses this load: "):
        measured(load=str(path), requests=None)


class Dies(StubEngine):
    async def post(self, endpoint: str, body: bytes, **options: Any) -> Response:
        raise EngineDied("it broke")


def test_death_of_the_engine_ends_the_bench_with_its_reason(measured: Bench) -> None:
    with pytest.raises(EngineDied, match="it broke"):
        measured(Dies())


class DiesLater(StubEngine):
    num_left = 20

    async def post(self, endpoint: str, body: bytes, **options: Any) -> Response:
        self.num_left -= 1
        if self.num_left < 0:
            raise EngineDied("it broke later")
        return await super().post(endpoint, body, **options)


def test_a_bench_that_ends_early_leaves_no_plots_of_an_earlier_one(
    measured: Bench, tmp_path: Path
) -> None:
    measured()
    folder = tmp_path / "bench"
    everything = {"results.json", "table.md", "table.csv", "bench.png", "bench.svg"}
    assert {path.name for path in folder.iterdir()} == everything
    with pytest.raises(EngineDied):
        measured(Dies())  # before anything was measured
    assert {path.name for path in folder.iterdir()} == everything
    with pytest.raises(EngineDied):
        measured(DiesLater(token_delay_s=0.001, max_num_seqs=8))
    assert {path.name for path in folder.iterdir()} == {"results.json"}


class NeverStarts(StubEngine):
    async def start(self) -> EngineInfo:
        raise AssertionError("the engine was started")


def test_unknown_load_is_told_before_the_engine_starts(measured: Bench, tmp_path: Path) -> None:
    with pytest.raises(
        SettingsError, match=r"unknown load 'x'; use one of lognormal, .* or a file"
    ):
        measured(NeverStarts(), load="x")
    path = tmp_path / "bad.jsonl"
    path.write_text("{}\n")
    with pytest.raises(InvalidRequest, match=r"bad\.jsonl, line 1: "):
        measured(NeverStarts(), load=str(path))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policies", "static,x"], "'x' is unknown; use continuous, "),
        (["--scheduling", "x"], "'x' is unknown; use fcfs, priority, sjf, "),
        (["--batch-size", "8,0"], "'8,0': a size is a whole number from 1 to 4096"),
        (["--requests", "0"], "0 is not in the range x>=1"),
        (["--rate", "0"], "0 is not in the range x>0"),
        (["--plot", "missing.json"], "'missing.json' does not exist"),
    ],
)
def test_wrong_option_is_named_with_its_remedy(arguments: list[str], message: str) -> None:
    ended = CliRunner().invoke(bench, arguments)
    assert ended.exit_code == 2
    assert message in " ".join(ended.stderr.split())


def test_redis_that_does_not_answer_is_told_before_the_engine_starts(
    measured: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    with pytest.raises(RedisUnreachable, match=rf"127\.0\.0\.1:{port} does not answer"):
        measured(redis_url=f"redis://127.0.0.1:{port}")
    assert "starting the engine" not in capfd.readouterr().err
