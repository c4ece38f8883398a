"""What tune writes: settings that a shell takes, a script, JSON with every point, no secrets."""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from gristmill.bench.tune.candidates import AUTO, PLAIN, Candidate, Setting
from gristmill.bench.tune.comparison import Comparison
from gristmill.bench.tune.engine_flags import decides_graphs, model_of, value_of, without_flags
from gristmill.bench.tune.engine_pool import EngineStart
from gristmill.bench.tune.engine_share import for_each_engine, share_of
from gristmill.bench.tune.goal import Goal
from gristmill.bench.tune.load_sample import LoadSample
from gristmill.bench.tune.measured_point import MeasuredPoint, together
from gristmill.bench.tune.print_tune import print_report
from gristmill.bench.tune.search import Search
from gristmill.bench.tune.tune_files import clear, save, script, settings
from gristmill.bench.tune.tune_report import TuneReport
from gristmill.worker.parent.child_plan import cpu_shares

SLOW, FAST = Setting(8, 2048), Setting(16, 2048)
POINTS = {
    Candidate(SLOW, 9): MeasuredPoint(
        Candidate(SLOW, 9), output_tokens_per_s=100, p50_s=1, p95_s=2
    ),
    Candidate(FAST, 18): MeasuredPoint(
        Candidate(FAST, 18), output_tokens_per_s=150, p50_s=2, p95_s=3
    ),
}
ARGV = ["--model", "m", "--max-num-seqs", "8", "--max_num_batched_tokens=2048", "--api-key", "k1"]


def a_report(goal: Goal | None = None) -> TuneReport:
    """Return what a search leaves that was stopped at its third engine, which broke."""
    search = Search(SLOW, goal or Goal())
    asks = search.asks()
    candidate = next(asks)
    while candidate.setting.max_num_seqs <= 16:
        candidate = asks.send(
            POINTS.get(candidate) or MeasuredPoint(candidate, output_tokens_per_s=1)
        )
    asks.send(MeasuredPoint(candidate, "out of memory"))
    starts = [
        EngineStart(SLOW, 10.0),
        EngineStart(FAST, 12.0),
        EngineStart(candidate.setting, 3.0, "out of memory"),
    ]
    sample = LoadSample("lognormal", 12)
    info = {"max_num_seqs": 8}
    report = TuneReport(goal or Goal(), ARGV, info, sample, search, starts, "it is late")
    report.spent_s = 60.0
    return report


def in_turns(best_tokens_per_s: float) -> Comparison:
    """Return two rounds, in which the start has 100 tokens per second."""
    comparison = Comparison(Candidate(SLOW, 9), Candidate(FAST, 18))
    for candidate, speed in ((comparison.start, 100.0), (comparison.best, best_tokens_per_s)):
        points = [MeasuredPoint(candidate, output_tokens_per_s=speed + i) for i in (-1, 1)]
        comparison.points += points
    return comparison


def run(folder: Path) -> str:
    """Return what the written script would execute."""
    fake = folder / "bin" / "gristmill"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\necho "$MAX_IN_FLIGHT $GRISTMILL_REFILL $GRISTMILL_ENGINES $@"\n')
    fake.chmod(0o700)
    return subprocess.check_output(
        ["/bin/sh", str(folder / "worker.sh"), "--queue", "q"],
        text=True,
        env={"PATH": f"{fake.parent}:/usr/bin:/bin"},
    )


def test_script_starts_the_worker_with_the_settings_beside_it(tmp_path: Path) -> None:
    save(a_report(), tmp_path)
    assert run(tmp_path) == (
        "18   worker --queue q -- --model m --api-key k1 --max-num-seqs 16 --max-num-batched-tokens 2048\n"
    )
    assert (tmp_path / "worker.sh").stat().st_mode & 0o077 == 0  # it holds the key


def test_script_has_graphs_and_env_file_has_gulps_and_engines(tmp_path: Path) -> None:
    candidate = Candidate(Setting(1024, 16_384, 1024, slots=4), 1024, engines=3, refill=PLAIN)
    (tmp_path / "worker.sh").write_text(script(candidate, ["it's/m"]))
    (tmp_path / "settings.env").write_text(settings(candidate, has_gulps=True))
    assert run(tmp_path) == (
        "1024 1 3 worker --queue q -- it's/m --max-num-seqs 1024 --max-num-batched-tokens 16384"
        " --max-cudagraph-capture-size 1024\n"
    )


def test_settings_have_nothing_that_an_env_file_would_take_literally(tmp_path: Path) -> None:
    save(a_report(), tmp_path)
    assert (tmp_path / "settings.env").read_text().splitlines() == ["MAX_IN_FLIGHT=18"]


@pytest.mark.parametrize(
    ("refill", "has_gulps", "line"),
    [
        (AUTO, True, ""),
        (PLAIN, True, "GRISTMILL_REFILL=1\n"),
        (64, True, "GRISTMILL_REFILL=64\n"),
        (PLAIN, False, ""),
    ],
)
def test_refill_is_written_only_where_it_differs_from_the_workers_own(
    refill: int, has_gulps: bool, line: str
) -> None:
    written = settings(Candidate(SLOW, 8, refill=refill), has_gulps=has_gulps)
    assert written == f"MAX_IN_FLIGHT=8\n{line}"


def test_json_has_every_point_and_start_and_no_secret(tmp_path: Path) -> None:
    report = a_report()
    report.comparison = in_turns(150)
    save(report, tmp_path)
    text = (tmp_path / "tune.json").read_text()
    found = json.loads(text)
    assert [MeasuredPoint.from_json(each) for each in found["points"]] == report.search.points
    assert [point["failure"] for point in found["points"]].count("out of memory") == 1
    assert [each["failure"] for each in found["starts"]] == ["", "", "out of memory"]
    for name in ("best", "recommended"):
        assert (found[name]["max_num_seqs"], found[name]["in_flight"]) == (16, 18)
    assert found["comparison"]["ratio"] == pytest.approx(1.5)
    assert found["ended_by"] == "it is late"
    assert "k1" not in text


def test_people_see_curve_comparison_and_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = a_report()
    report.comparison = in_turns(150)
    print_report(report, tmp_path)
    printed = capsys.readouterr()
    assert "█" * 24 in printed.out
    assert "out of memory" in printed.out
    assert "in turns, your flags: 99 101 tok/s" in printed.out
    assert "in turns, best: 149 151 tok/s" in printed.out
    assert "ratio of the medians, best over your flags: 1.50" in printed.out
    assert f"start the worker with: sh {tmp_path}/worker.sh" in printed.out
    assert "gristmill worker -- --model m --api-key '***' --max-num-seqs 16" in printed.out
    assert "engine starts: 3, which took 25 s of this time" in printed.err


def test_start_that_wins_in_turns_is_recommended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = a_report()
    report.comparison = in_turns(90)
    save(report, tmp_path)
    print_report(report, tmp_path)
    printed = capsys.readouterr().out
    assert "ratio of the medians, best over your flags: 0.90" in printed
    assert "your flags win: keep them" in printed
    assert "--max-num-seqs 8" in (tmp_path / "worker.sh").read_text()
    assert (tmp_path / "settings.env").read_text() == "MAX_IN_FLIGHT=9\n"


@pytest.mark.parametrize(("start_p95_s", "is_start"), [(2.0, True), (4.5, False)])
def test_best_that_exceeds_the_bound_in_turns_is_not_recommended(
    start_p95_s: float, is_start: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = a_report(Goal(max_p95_s=4.0))
    comparison = report.comparison = in_turns(150)
    p95s = {comparison.start: start_p95_s, comparison.best: 5.0}
    comparison.points = [replace(each, p95_s=p95s[each.candidate]) for each in comparison.points]
    save(report, tmp_path)
    print_report(report, tmp_path)
    printed = capsys.readouterr()
    assert "median p95 5.00 s" in printed.out
    assert ("your flags win: keep them" in printed.out) == is_start
    assert ("neither keeps a p95 of 4 s in turns" in printed.err) == (not is_start)
    assert (tmp_path / "worker.sh").exists() == is_start


def test_bound_that_no_point_keeps_writes_no_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = a_report()
    report.goal = report.search.record.goal = Goal(max_p95_s=0.5)
    save(report, tmp_path)
    print_report(report, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["tune.json"]
    assert "no point keeps a p95 of 0.5 s; the lowest was 2.00 s" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "kept"),
    [
        (["--max-num-seqs", "8", "--model", "m"], ["--model", "m"]),
        (["m", "--max-num-seqs=8", "--max_num_batched_tokens", "9"], ["m"]),
        (["--model", "m", "--max-model-len", "8"], ["--model", "m", "--max-model-len", "8"]),
    ],
)
def test_tuned_flags_are_not_said_twice(argv: list[str], kept: list[str]) -> None:
    assert without_flags(argv) == kept


def test_values_of_flags_are_found_in_all_their_forms() -> None:
    argv = ["m", "--gpu_memory_utilization=0.5", "--gpu-memory-utilization", "0.8"]
    assert value_of(argv, "--gpu-memory-utilization") == "0.8"
    assert value_of(argv[:2], "--gpu-memory-utilization") == "0.5"
    assert value_of(argv, "--max-num-seqs") == ""
    assert (model_of(argv), model_of(["--model=n"]), model_of(["--x"])) == ("m", "n", "")


@pytest.mark.parametrize(
    "flag", ["-O3", "-cc.cudagraph_mode=NONE", "--compilation_config={}", "--enforce-eager"]
)
def test_flags_about_graphs_are_found_in_all_their_forms(flag: str) -> None:
    assert decides_graphs(["m", flag])
    assert not decides_graphs(["m", "--max-num-seqs", "8"])


def test_engines_side_by_side_get_equal_parts_of_the_memory() -> None:
    def flags(argv: list[str], slots: int) -> list[str]:
        return [*share_of(argv, slots, 0, is_cpu=False).flags]

    card = "--gpu-memory-utilization"
    assert flags(["m"], 1) == ["m"]
    assert flags(["m"], 4) == ["m", card, "0.225"]
    assert flags(["m", f"{card}=0.8"], 2) == ["m", f"{card}=0.8", card, "0.4"]
    assert flags(["m"], 7)[-1] == "0.128"  # never more than all together
    assert flags(["m", "--kv-cache-memory-bytes", "9"], 2) == ["m", "--kv-cache-memory-bytes", "9"]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two engines need two cores")
def test_engines_on_a_cpu_get_what_the_worker_gives_them() -> None:
    shares = [share_of(["m"], 2, place, is_cpu=True) for place in range(2)]
    assert shares == cpu_shares(2, ["m"])
    assert not set(shares[0].cores) & set(shares[1].cores)


def test_share_of_each_engine_is_written_if_the_flags_say_that_of_all() -> None:
    argv = ["m", "--gpu-memory-utilization", "0.8", "--x"]
    assert for_each_engine(argv, 1) == argv
    assert for_each_engine(argv, 2) == ["m", "--x", "--gpu-memory-utilization", "0.4"]
    assert for_each_engine(["m", "--x"], 2) == ["m", "--x"]


def test_points_of_engines_side_by_side_add_up() -> None:
    candidate = Candidate(SLOW, 9, engines=2)
    points = [
        MeasuredPoint(candidate, output_tokens_per_s=speed, p95_s=speed, running=8, num_requests=5)
        for speed in (100, 120)
    ]
    both = together(candidate, points)
    assert (both.tokens_per_s, both.p95_s, both.running, both.num_requests) == (220, 120, 8, 10)
    broken = MeasuredPoint(candidate, "it died")
    assert together(candidate, [points[0], broken]).failure == "it died"


def test_what_an_earlier_search_left_is_gone_and_nothing_else(tmp_path: Path) -> None:
    for name in ("settings.env", "worker.sh", "tune.json", "engine-02.log", "mine.log"):
        (tmp_path / name).touch()
    clear(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.log"]


def test_search_whose_every_point_failed_is_printed_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    search = Search(SLOW, Goal())
    asks = search.asks()
    candidate = next(asks)
    with pytest.raises(StopIteration):
        while True:
            candidate = asks.send(MeasuredPoint(candidate, "out of memory"))
    info = {"max_num_seqs": 8}
    report = TuneReport(Goal(), ARGV, info, LoadSample("lognormal", 12), search, [], "done")
    print_report(report, tmp_path)
    printed = capsys.readouterr()
    assert "out of memory" in printed.out
    assert "no point could be measured" in printed.err


def test_settings_are_taken_away_when_nothing_keeps_the_bound_any_more(tmp_path: Path) -> None:
    save(a_report(), tmp_path)
    assert (tmp_path / "settings.env").exists()
    none = TuneReport(Goal(), ARGV, {}, LoadSample("lognormal", 12), Search(SLOW, Goal()), [])
    save(none, tmp_path)
    assert not (tmp_path / "settings.env").exists()
    assert not (tmp_path / "worker.sh").exists()
