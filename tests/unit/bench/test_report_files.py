"""What the bench writes can be read again, and says nothing where there is nothing to say."""

import csv
import io
import sys
from pathlib import Path

import pytest

from gristmill.bench.bench_report import BenchReport, EngineSample, RequestTiming, SetupRun
from gristmill.bench.figures import setup_figures
from gristmill.bench.plots import MAX_POINTS, draw, thinned
from gristmill.bench.report_files import rewrite_report, write_report
from gristmill.bench.setups import ALONE, Setup
from gristmill.bench.table import as_csv, markdown
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.install import install_hint

ENGINE = {"models": ["/models/m"], "device": "cpu", "transport": "stub", "vllm_version": "1"}


def a_run(setup: Setup, **fields: object) -> SetupRun:
    requests = [
        RequestTiming("a", 0, 0.5, 2, 0.1, 200, 5, 11),
        RequestTiming("b", 0, 0.25, 1, 0.1, 200, 5, 11),
        RequestTiming("b", 0, 1, 3, 0.1, 200, 5, 11),
    ]
    samples = [EngineSample(0.1 * i, i % 3, 0, 0.1) for i in range(20)]
    engine = {"prefix_cache_hits": 3, "prefix_cache_queries": 12, "preemptions": 0, "steps": 40}
    values = {"num_claimed": 3, "closed_by": {"full": 2}, "engine": engine}
    return SetupRun(setup, 1, 4.0, requests, samples, **(values | fields))  # type: ignore[arg-type]  # names of its own fields


@pytest.fixture
def report() -> BenchReport:
    alone = a_run(Setup(ALONE), num_claimed=0, closed_by={})
    runs = [alone, a_run(Setup("static", size=2)), a_run(Setup("static", "fair", 4))]
    return BenchReport({"engine": ENGINE}, {"name": "x", "num_requests": 3}, runs)


def test_report_is_read_as_it_was_written(report: BenchReport, tmp_path: Path) -> None:
    report.save(tmp_path / "results.json")
    assert BenchReport.load_from(tmp_path / "results.json") == report


@pytest.mark.parametrize("content", ["{", "[]", '{"format": 0}', '{"format": 1}'])
def test_another_file_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(
        InvalidRequest, match=r"other\.json is not a report .* give the results\.json"
    ):
        BenchReport.load_from(path)


def test_markdown_leaves_out_what_nobody_has(report: BenchReport) -> None:
    lines = markdown(setup_figures(report.runs)).splitlines()
    assert lines[0] == (
        "| setup | req/s | tok/s | of alone | claim | closed by | running | steps | KV peak | prefix hits"
        " | preempted | fairness |"
    )
    assert (
        lines[3]
        == "| static x2 | 0.75 | 8 | 1.000 | 1.5 | full 2 | 0.9 | 40 | 10% | 25% | 0 | 1.000 |"
    )
    assert lines[4].startswith("| static, fair x4 | ")
    assert lines[9] == (
        "| static x2 | 0.500 / 0.950 | 0.100 / 0.100 / 0.100 | 140.0 / 185.0 | 1.50 / 1.95 / 1.99 | 2.00 | 2.00 / 2.90 / 2.98 |"
    )


def test_csv_has_every_figure(report: BenchReport) -> None:
    first, second, _ = csv.DictReader(io.StringIO(as_csv(setup_figures(report.runs))))
    assert (first["policy"], first["claim_size"], first["closed_by"]) == (ALONE, "", "")
    assert (second["policy"], second["size"], second["closed_by"]) == ("static", "2", "full=2")
    assert (second["wait_s_p50"], second["by_round"]) == ("0.5", "8.2")


def test_picture_is_drawn_from_the_saved_report(report: BenchReport, tmp_path: Path) -> None:
    report.save(tmp_path / "results.json")
    rewrite_report(tmp_path / "results.json")
    svg = (tmp_path / "bench.svg").read_text()
    assert svg.startswith("<?xml")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in tmp_path.iterdir()} == {
        "results.json", "table.md", "table.csv", "bench.png", "bench.svg",
    }  # fmt: skip
    draw(report, tmp_path / "bench")
    assert (tmp_path / "bench.svg").read_text() == svg  # a second look changes nothing


def test_without_matplotlib_the_tables_are_there(
    report: BenchReport,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    write_report(report, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"table.md", "table.csv"}
    message = capsys.readouterr().err
    assert install_hint("bench") in message
    assert f"gristmill bench --plot {tmp_path}/results.json" in message


def test_line_is_thinned_to_means() -> None:
    points = [(float(i), float(i % 2)) for i in range(2 * MAX_POINTS)]
    thin = thinned(points)
    assert len(thin) == MAX_POINTS
    assert thin[0] == (0.5, 0.5)
    assert thinned(points[:3]) == points[:3]
