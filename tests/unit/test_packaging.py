"""One namespace in five portions, and a producer that stays light."""

import subprocess
import sys
from pathlib import Path

from gristmill.shared.install import CUDA_ONLY, TORCH_INDEX

REPOSITORY = Path(__file__).resolve().parents[2]


def test_no_portion_hides_the_others() -> None:
    """A `gristmill/__init__.py` would, in an editable install, while mypy and the wheel stay green."""
    assert [
        path
        for portion in ("bench", "local", "producer", "shared", "worker")
        for path in (REPOSITORY / portion).glob("gristmill/__init__.py")
    ] == []


def test_producer_loads_no_engine() -> None:
    script = (
        "import sys; import gristmill.producer, gristmill.shared.cli, gristmill.producer.commands.submit;"
        "sys.exit(bool({'torch', 'vllm', 'aiohttp', 'prometheus_client', 'rq'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_the_makefile_and_the_install_lines_agree_on_the_engine_for_a_cpu() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    assert f"CUDA_ONLY = {' '.join(CUDA_ONLY)}\n" in makefile
    assert f"TORCH_INDEX = {TORCH_INDEX}\n" in makefile
