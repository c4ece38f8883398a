"""The row of `benchmarks/peers/queues.py` that needs no peer: it measures, and sees a killed worker's requests end."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "peers" / "queues.py"


@pytest.mark.timeout(400)
def test_row_has_rates_and_every_request_survives_its_worker() -> None:
    arguments = ["--tasks", "2000", "--rounds", "1", "--kill-wait-s", "200", "--only", "bulk"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    row = done.stdout.splitlines()[-1]
    number = r"([\d,.]+) \([\d,.]+ to [\d,.]+\)"
    cells = re.fullmatch(
        rf"\| Gristmill, bulk submit \| {number} \| {number} \| 1.00 \| {number} \| (.*) \|", row
    )
    assert cells is not None, row
    assert all(float(cell.replace(",", "")) > 0 for cell in cells.groups()[:3])
    assert cells[4].startswith("8 of 8 in "), row
    assert "twice" not in cells[4], row
