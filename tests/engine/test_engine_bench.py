"""Test `gristmill bench` on a real engine, whose figures come from vLLM itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gristmill.bench.bench_report import BenchReport
from gristmill.bench.figures import setup_figures

COMMAND = "from gristmill.bench.commands import bench; bench()"
PREFIX_TOKENS = 256
"""Of a scale of 0.5: two blocks of vLLM's cache on a CPU."""


@pytest.mark.long
def test_bench_measures_the_true_engine(model_dir: Path, tmp_path: Path) -> None:
    options = (
        "--load shared-prefix --requests 64 --scale 0.5 --policies static,continuous --batch-size 8"
    )
    engine = "--enforce-eager --max-num-seqs 8 --kv-cache-memory-bytes 67108864"
    ended = subprocess.run(
        [
            *(sys.executable, "-c", COMMAND, *options.split(), "--out", str(tmp_path)),
            *("--", "--model", str(model_dir), "--served-model-name", "tiny", *engine.split()),
        ],
        env={name: value for name, value in os.environ.items() if name != "REDIS_URL"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "continuous x8" in ended.stdout
    report = BenchReport.load_from(tmp_path / "results.json")
    assert report.facts["command"].startswith("gristmill bench --load shared-prefix --requests 64")
    for row, run in zip(setup_figures(report.runs), report.runs, strict=True):
        assert row.num_failed == 0
        assert run.engine["output_tokens"] == report.load["max_tokens"]
        assert run.engine["prompt_tokens"] == report.load["prompt_tokens"]
        assert row.ttft_s.p50 is not None
        assert row.tpot_s.p50 is not None
        assert 0 < row.ttft_s.p50 < (row.engine_s.p50 or 0)
        assert max(sample.running for sample in run.samples) <= 8
        # The second request of a group may hit the cache of the first, but not the cache of another run.
        assert 0 <= run.engine["prefix_cache_hits"] <= 32 * PREFIX_TOKENS
    assert report.runs[0].engine["prefix_cache_hits"] > 0
    assert (tmp_path / "bench.svg").stat().st_size > 10_000
