"""The examples of docs/structured-outputs.md, and of structured answers in docs/tables.md and docs/python.md."""

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import pytest_asyncio
from command_line import CommandLine
from workers import TRUE, worker_process

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "structured-outputs.md").read_text()
PERSONS, REVIEWS, RHYMES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
TABLES = (DOCS / "tables.md").read_text()
SECTION = TABLES[TABLES.index("## Structured answers") :]
PYTHON = (DOCS / "python.md").read_text()


@pytest.fixture(scope="module")
def shell(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    return CommandLine(redis_url, f"test-{uuid4().hex[:12]}", tmp_path_factory.mktemp("docs"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(shell: CommandLine, argv: list[str]) -> AsyncIterator[None]:
    flags, log = ("--", *argv), shell.folder / "log"
    async with (
        shell.open_queue() as queue,
        worker_process(TRUE, shell.redis_url, queue, log, flags, OMP_NUM_THREADS="1"),
    ):
        yield


async def run(shell: CommandLine, *command: str, codes: tuple[int, ...] = (0,)) -> str:
    done = await asyncio.to_thread(
        subprocess.run,
        command,
        env=shell.environment,
        cwd=shell.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in codes, done.stderr
    return done.stdout


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.usefixtures("worker")
async def test_the_examples_run(shell: CommandLine) -> None:
    persons, reviews, rhymes = [
        await run(shell, sys.executable, "-W", "error", "-c", code)
        for code in (PERSONS, REVIEWS, RHYMES)
    ]
    # The tiny model is random: its JSON may not end within the limit, and that is what it says then.
    cut = "max_tokens is too small for the answer"
    assert len(persons.splitlines()) == 2
    assert all(line.startswith("name=") or line == cut for line in persons.splitlines())
    assert len(re.findall(r"\b(?:positive|negative)\b", reviews.replace("I love it.", ""))) >= 2
    assert [line.split()[0] for line in rhymes.splitlines()[:2]] == ["101", "102"]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.usefixtures("worker")
async def test_answers_of_a_schema_become_typed_columns(shell: CommandLine) -> None:
    table = re.search(r"```csv\n(.*?)```", TABLES, re.DOTALL)
    shapes, query = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
    command = re.search(r"```bash\n(.*?)```", SECTION, re.DOTALL)
    assert table
    assert command
    (shell.folder / "reviews.csv").write_text(table[1])
    (shell.folder / "shapes.py").write_text(shapes)
    function = f'gristmill() {{ {sys.executable} -m gristmill.shared.cli "$@"; }}'
    await run(shell, "sh", "-c", f"{function}\n{command[1]}", codes=(0, 1))
    assert "reasons[1]" in await run(shell, sys.executable, "-c", query)
    written = pq.read_table(shell.folder / "fields.parquet")
    product = pa.struct([("name", pa.string()), ("is_broken", pa.bool_())])
    types = [written.schema.field(name).type for name in ("label", "score", "reasons", "product")]
    assert types == [pa.string(), pa.int64(), pa.list_(pa.string()), product]
    rows = written.to_pylist()
    null = rows.pop(2)
    assert null["label"] is null["product"] is null["error"] is None
    # The tiny model is random: bytes that are no UTF-8 become more characters than the engine's grammar counted.
    fitting = [row for row in rows if row["error"] != "schema_mismatch"]
    assert fitting
    for row in fitting:
        assert row["error"] is None
        assert row["label"] in ("positive", "negative")
        assert 1 <= row["score"] <= 5
        assert len(row["reasons"]) <= 3
        assert isinstance(row["product"]["is_broken"], bool)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.usefixtures("worker")
async def test_a_data_frame_gets_the_typed_columns_of_a_model(shell: CommandLine) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PYTHON, re.DOTALL)
    (code,) = [block for block in blocks if "schema=Review" in block]
    printed = await run(shell, sys.executable, "-W", "error", "-c", code)
    assert "shape: (2, 2)" in printed
    assert "│ str" in printed
    assert "┆ bool" in printed
    assert len(re.findall(r"(?:positive|negative) +┆ (?:true|false)", printed)) == 2
