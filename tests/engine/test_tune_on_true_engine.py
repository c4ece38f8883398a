"""Test `gristmill tune` with real engines, each in a separate process."""

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic
from uuid import uuid4

import psutil
import pytest
from workers import worker_process

from gristmill.bench.tune.budget import Budget
from gristmill.bench.tune.candidates import Candidate, Setting
from gristmill.bench.tune.commands import tune
from gristmill.bench.tune.engine_flags import setting_of
from gristmill.bench.tune.engine_pool import EnginePool
from gristmill.bench.tune.engine_process import FlagsRefused
from gristmill.bench.tune.goal import Goal
from gristmill.bench.tune.load_sample import LoadSample
from gristmill.bench.tune.measured_point import MeasuredPoint
from gristmill.bench.tune.search import Search
from gristmill.bench.tune.time_plan import TimePlan
from gristmill.bench.tune.tune_files import save
from gristmill.bench.tune.tune_report import TuneReport
from gristmill.producer.client import Client
from gristmill.shared.connection import connect
from gristmill.shared.errors import SettingsError
from gristmill.shared.queue import Queue
from gristmill.shared.request import Request

EngineProcesses = Callable[[], list[psutil.Process]]


@pytest.fixture
def flags(model_dir: Path) -> list[str]:
    return [
        *("--model", str(model_dir), "--enforce-eager", "--max-num-seqs", "4"),
        *("--max-num-batched-tokens", "1024", "--kv-cache-memory-bytes", str(64 * 2**20)),
    ]


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    path = tmp_path / "my.jsonl"
    lines = [{"prompt": f"the quick brown fox {i}", "max_tokens": 4 + i % 9} for i in range(20)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def a_pool(flags: list[str], sample: Path, folder: Path) -> EnginePool:
    """Return a pool for one engine, with points of 8 s and time without end."""
    plan = TimePlan(Budget(100, monotonic() + 10**6))
    return EnginePool(flags, LoadSample(str(sample)), folder, plan)


def tuned(sample: Path, out: Path, flags: list[str], *options: str) -> None:
    tune.main(
        ["--sample", str(sample), "--out", str(out), *options, "--", *flags], standalone_mode=False
    )


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_each_setting_is_an_engine_of_its_own_and_one_that_breaks_is_a_point(
    flags: list[str], sample: Path, tmp_path: Path, engine_processes: EngineProcesses
) -> None:
    async with a_pool(flags, sample, tmp_path) as runner:
        first = setting_of(await runner.start(None, 500))
        assert first == Setting(4, 1024)
        points = [await runner.measure(Candidate(first, number)) for number in (1, 5)]
        assert [point.failure for point in points] == ["", ""]
        assert [point.candidate.in_flight for point in points] == [1, 5]
        assert min(point.tokens_per_s for point in points) > 0
        assert len(runner.starts) == 1
        refused = await runner.measure(Candidate(Setting(2048, 1024), 5))
        assert "max_num_seqs" in refused.failure  # vLLM wants a token for each sequence
        assert [start.failure != "" for start in runner.starts] == [False, True]
    assert engine_processes() == []


@pytest.mark.long
async def test_written_command_starts_a_worker_that_answers(
    flags: list[str], sample: Path, tmp_path: Path, redis_url: str
) -> None:
    start = Setting(2, 1024)
    search = Search(start, Goal())
    asks = search.asks()
    asks.send(MeasuredPoint(next(asks), output_tokens_per_s=1))
    save(TuneReport(Goal(), flags, {}, LoadSample(str(sample)), search, []), tmp_path)
    redis = connect(redis_url)
    queue = Queue(redis, f"test-{uuid4().hex[:12]}")
    command = ("sh", str(tmp_path / "worker.sh"))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    log = tmp_path / "worker.log"
    async with (
        worker_process(command, redis_url, queue, log, PATH=path) as worker,
        Client(queue=Queue(connect(redis_url), queue.keys.queue, queue.limits)) as client,
    ):
        request = Request.from_body({"prompt": "the fox", "max_tokens": 3})
        [result] = [each async for each in client.as_completed([request])]
        assert result.status == "succeeded"
        assert "gristmill_max_in_flight 3.0" in worker.probe("/metrics")[1]
    await redis.aclose()


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_engines_side_by_side_are_one_point(
    flags: list[str], sample: Path, tmp_path: Path, engine_processes: EngineProcesses
) -> None:
    async with a_pool(flags, sample, tmp_path) as runner:
        setting = setting_of(await runner.start(None, 500, slots=2), slots=2)
        both = await runner.measure(Candidate(setting, 3, engines=2))
        alone = await runner.measure(Candidate(setting, 3, refill=2))
        assert [both.failure, alone.failure] == ["", ""]
        assert both.num_requests > 0
        assert alone.gulp_places >= 2
        assert (len(runner.starts), runner.plan.slots.resident) == (2, (setting, setting))
    assert engine_processes() == []


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_engine_that_is_killed_while_it_is_measured_is_a_point(
    flags: list[str], sample: Path, tmp_path: Path, engine_processes: EngineProcesses
) -> None:
    async with a_pool(flags, sample, tmp_path) as runner:
        setting = setting_of(await runner.start(None, 500))
        for process in engine_processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        point = await runner.measure(Candidate(setting, 2))
        assert "its process was killed by SIGKILL. " in point.failure
    assert engine_processes() == []


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_engine_that_does_not_start_says_why(sample: Path, tmp_path: Path) -> None:
    async with a_pool(["--model", "/nowhere"], sample, tmp_path) as runner:
        with pytest.raises(FlagsRefused, match="model folder /nowhere does not exist"):
            await runner.start(None, 500)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_bound_that_nothing_keeps_ends_the_search_on_one_engine(
    flags: list[str], sample: Path, tmp_path: Path, engine_processes: EngineProcesses
) -> None:
    out = tmp_path / "tune"
    with pytest.raises(SystemExit) as ended:
        tuned(sample, out, flags, "--max-p95-s", "0.000001", "--budget", "10m")
    assert ended.value.code == 1
    found = json.loads((out / "tune.json").read_text())
    assert [point["in_flight"] for point in found["points"]] == [5, 2, 1]
    assert all(point["requests_per_s"] > 0 for point in found["points"])
    assert (found["ended_by"], found["best"], len(found["starts"])) == (
        "the search is done",
        None,
        1,
    )
    assert not (out / "settings.env").exists()
    assert engine_processes() == []


@pytest.mark.long
@pytest.mark.timeout(600)
def test_budget_shorter_than_a_start_is_told_with_how_long_it_took(
    flags: list[str], sample: Path, tmp_path: Path, engine_processes: EngineProcesses
) -> None:
    with pytest.raises(SettingsError, match=r"took \d+ s to start, and a budget of 1 s leaves no"):
        tuned(sample, tmp_path / "tune", flags, "--budget", "1s")
    assert engine_processes() == []
