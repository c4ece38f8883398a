"""What tune writes: settings that a shell takes, JSON with every point, no secrets."""

import json
import subprocess
from pathlib import Path

import pytest

from gristmill.bench.tune.candidates import Candidate, Setting
from gristmill.bench.tune.engine_flags import without_flags
from gristmill.bench.tune.engine_runner import EngineStart
from gristmill.bench.tune.goal import Goal
from gristmill.bench.tune.load_sample import LoadSample
from gristmill.bench.tune.measured_point import MeasuredPoint
from gristmill.bench.tune.search import Search
from gristmill.bench.tune.tune_report import TuneReport, clear, print_report, save, worker_command

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
    return TuneReport(
        goal or Goal(), ARGV, {"max_num_seqs": 8}, sample, search, starts, "it is late", 60.0
    )


def test_settings_are_taken_by_a_shell(tmp_path: Path) -> None:
    report = a_report()
    save(report, tmp_path)
    script = (
        f"set -a; . {tmp_path}/settings.env; set +a; echo $MAX_IN_FLIGHT {worker_command(report)}"
    )
    printed = subprocess.check_output(["sh", "-c", script], text=True)
    assert printed == (
        "18 gristmill worker -- --model m --api-key *** --max-num-seqs 16 --max-num-batched-tokens 2048\n"
    )


def test_settings_have_nothing_that_an_env_file_would_take_literally(tmp_path: Path) -> None:
    save(a_report(), tmp_path)
    lines = (tmp_path / "settings.env").read_text().splitlines()
    assert lines == ["MAX_IN_FLIGHT=18", "MAX_NUM_SEQS=16", "MAX_NUM_BATCHED_TOKENS=2048"]


def test_json_has_every_point_and_start_and_no_secret(tmp_path: Path) -> None:
    report = a_report()
    save(report, tmp_path)
    text = (tmp_path / "tune.json").read_text()
    found = json.loads(text)
    assert [MeasuredPoint.from_json(each) for each in found["points"]] == report.search.points
    assert [point["failure"] for point in found["points"]].count("out of memory") == 1
    assert [each["failure"] for each in found["starts"]] == ["", "", "out of memory"]
    assert (found["best"]["max_num_seqs"], found["best"]["in_flight"]) == (16, 18)
    assert found["ended_by"] == "it is late"
    assert "k1" not in text


def test_people_see_the_curve_the_gain_and_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_report(a_report(), tmp_path)
    printed = capsys.readouterr()
    assert "█" * 24 in printed.out
    assert "out of memory" in printed.out
    assert "1.50 times what these flags alone do" in printed.err
    assert f". {tmp_path}/settings.env" in printed.err
    assert "engine starts: 3, which took 25 s of this time" in printed.err


def test_bound_that_no_point_keeps_writes_no_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = a_report()
    report.goal = report.search._goal = Goal(max_p95_s=0.5)
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


def test_what_an_earlier_search_left_is_gone_and_nothing_else(tmp_path: Path) -> None:
    for name in ("settings.env", "tune.json", "engine-02.log", "mine.log"):
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
    report = TuneReport(
        Goal(), ARGV, {"max_num_seqs": 8}, LoadSample("lognormal", 12), search, [], "done"
    )
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
