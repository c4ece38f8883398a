"""The examples of docs/tables.md run on the files that the page shows, one after the other."""

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from command_line import CommandLine
from own_runs import OwnRuns
from workers import STUB, worker_process

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tables.md").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


async def test_the_examples_run(redis_url: str, tmp_path: Path) -> None:
    shell = CommandLine(redis_url, f"test-{tmp_path.name}", tmp_path)

    async def in_shell(code: str, shell: CommandLine = shell) -> tuple[int, str, str]:
        as_command = f'gristmill() {{ {sys.executable} -m gristmill.shared.cli "$@"; }}\n{code}'
        done = await asyncio.to_thread(
            subprocess.run, ["sh", "-c", as_command], env=shell.environment, cwd=tmp_path,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    for name, kind in [("reviews.csv", "csv"), ("params.json", "json"), ("review.jinja", "jinja")]:
        (tmp_path / name).write_text(blocks(kind)[0])
    (tmp_path / "parts").mkdir()
    pq.write_table(pa.table({"text": ["a", "b"]}), tmp_path / "parts" / "1.parquet")
    first, several, renamed, template, _ = blocks("bash")  # a true engine runs the last one
    async with (
        shell.open_queue() as queue,
        worker_process(STUB, redis_url, queue, tmp_path / "log"),
    ):
        code, _, told = await in_shell(first, OwnRuns("", "", tmp_path))
        assert code == 1, told
        assert "1 of 4 rows have a null in a used column and get an error" in told
        assert "1 of 4 rows ask the same as an earlier row" in told
        code, printed, told = await in_shell(f"{sys.executable} -c '{blocks('python')[0]}'")
        assert (code, told) == (0, "")
        rows = printed.splitlines()
        assert rows[0].startswith("1 Is this review positive")
        assert "null_value: reviews.csv data row 3: column 'text' is null" in rows[2]
        assert rows[3][1:] == rows[0][1:]
        for example in (several, renamed, template):
            code, _, told = await in_shell(example)
            assert code == 0, told
    labels = pd.read_parquet(tmp_path / "labels.parquet")
    described = re.findall(r"^\| (`.*?) \|", PAGE[: PAGE.index("Row 3 has")], re.MULTILINE)
    added = re.findall(r"`(\w+)`", " ".join(described))
    assert list(labels.columns) == ["id", "stars", "text", *added]
    assert list(pd.read_csv(tmp_path / "all.csv")["text"]) == ["a", "b"]
    more = [json.loads(line) for line in (tmp_path / "more.jsonl").read_text().splitlines()]
    assert [row["reason"] is None for row in more] == [False, False, True, False]
    sorted_rows = [
        json.loads(line) for line in (tmp_path / "sorted.jsonl").read_text().splitlines()
    ]
    assert sorted_rows[1]["answer"].startswith("Broke on the first day")
    assert sorted_rows[2]["answer"] is sorted_rows[2]["error"] is None
