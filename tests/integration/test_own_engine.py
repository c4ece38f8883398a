"""`map_table` on an engine of the program, with a stub for the engine."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest
from own_runs import OwnRuns

pytestmark = pytest.mark.timeout(180)

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "python.md").read_text()

DEATH = """
import pandas as pd, psutil
from gristmill.local.own_engine import own_engine
from gristmill.producer import GristmillError, map_table

with own_engine("stub", "--kv-cache-memory-bytes", "1") as engine:
    def kill(row):
        for process in psutil.Process().children(recursive=True):
            if "worker" in process.cmdline():
                process.kill()
        return {"prompt": "x"}

    try:
        map_table(pd.DataFrame({"n": [1]}), request=kill, engine=engine)
    except GristmillError as error:
        print(str(error).splitlines()[0])
print(psutil.Process().children(recursive=True))
"""


@pytest.fixture
def shell(tmp_path: Path) -> OwnRuns:
    folder = tmp_path / "runs"
    folder.mkdir()
    return OwnRuns("", "", folder)


async def run(shell: OwnRuns, code: str) -> tuple[str, str]:
    command = (sys.executable, "-c", code)
    done = await asyncio.to_thread(
        subprocess.run, command, env=shell.environment, cwd=shell.folder, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


async def test_the_example_runs_on_an_engine_that_ends_with_the_block(shell: OwnRuns) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (code,) = [block for block in blocks if "own_engine(" in block]
    code += "\nimport psutil\nprint(psutil.Process().children(recursive=True))\n"
    printed, told = await run(shell, code)
    assert printed.splitlines() == ["True", "[]"]
    assert "starting the worker and its engine" in told
    assert list(shell.folder.iterdir()) == []


async def test_an_engine_that_dies_ends_the_call_with_its_log(shell: OwnRuns) -> None:
    printed, _ = await run(shell, DEATH)
    told, children = printed.splitlines()
    assert "the worker was killed by SIGKILL" in told
    assert "the end of its log" in told
    assert children == "[]"
