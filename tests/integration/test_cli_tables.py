"""`gristmill submit` on tables: a subprocess, a true server, and the stub engine in a worker process."""

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import orjson
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import CommandLine, SettlingWorker, ended
from workers import STUB, worker_process

from gristmill.shared.queue import Queue

NUM_ROWS = 3_000


@pytest.fixture
def shell(redis_url: str, tmp_path: Path) -> CommandLine:
    return CommandLine(redis_url, f"test-{uuid4().hex[:12]}", tmp_path)


@pytest.fixture
async def queue(shell: CommandLine) -> AsyncIterator[Queue]:
    async with shell.open_queue() as queue:
        yield queue


def reviews(folder: Path, **columns: list[object]) -> str:
    pq.write_table(pa.table(columns or {"text": ["good", "bad"]}), folder / "in.parquet")
    return "in.parquet"


@pytest.mark.timeout(180)
async def test_a_killed_run_resumes_in_order_and_runs_no_row_twice(
    shell: CommandLine, queue: Queue
) -> None:
    texts = [f"row {number}" for number in range(NUM_ROWS)]
    pq.write_table(
        pa.table({"text": texts, "n": range(NUM_ROWS)}),
        shell.folder / "in.parquet",
        row_group_size=700,
    )
    (shell.folder / "params.json").write_text('{"max_tokens": 8}')
    command = (
        "submit", "in.parquet", "--prompt", "{text}", "--params", "params.json", "--wait",
        "-o", "out.parquet", "--window", "64", "--json",
    )  # fmt: skip
    journal = shell.folder / "out.parquet.parts" / "0000000.jsonl"
    async with worker_process(STUB, shell.redis_url, queue, shell.folder / "log") as worker:
        process = await shell.start(*command)
        while not (journal.exists() and journal.read_bytes().count(b"\n") > NUM_ROWS // 3):
            assert process.returncode is None
            await asyncio.sleep(0.01)
        process.kill()
        await ended(process)
        num_written = journal.read_bytes().count(b"\n")
        assert num_written < NUM_ROWS
        done = await shell.finish(*command)
        assert done.code == 0, done.err
        ran = [event["id"] for event in worker.events("request.completed")]
    assert (len(ran), len(set(ran))) == (NUM_ROWS, NUM_ROWS)
    summary = done.rows[0]
    assert (summary["total"], summary["succeeded"]) == (NUM_ROWS, NUM_ROWS)
    assert NUM_ROWS // 3 < summary["finished_earlier"] <= num_written
    last = f"{summary['run']}-{NUM_ROWS}"
    assert await queue.results([last]) == [None]  # the answer is in the output alone
    frame = pd.read_parquet(shell.folder / "out.parquet")
    assert list(frame["n"]) == list(range(NUM_ROWS))
    assert [
        answer[: len(text)] for answer, text in zip(frame["answer"], texts, strict=True)
    ] == texts
    assert frame["error"].isna().all()
    assert not journal.parent.exists()
    again = shell.run(*command)
    assert (again.code, again.rows[0]["total"]) == (0, NUM_ROWS), again.err
    assert "has finished: 3,000 rows are there already (0 failed)" in again.err


async def test_a_resume_with_other_words_or_rows_is_refused_by_name(
    shell: CommandLine, queue: Queue
) -> None:
    reviews(shell.folder)
    (shell.folder / "params.json").write_text('{"max_tokens": 8}')
    (shell.folder / "other.json").write_text('{"max_tokens": 9}')
    common = ("--endpoint", "/v1/completions", "--wait", "-o", "out.csv")
    async with SettlingWorker(queue).running():
        done = await shell.finish(
            "submit", "in.parquet", *common, "--prompt", "{text}", "--params", "params.json"
        )
    assert done.code == 0, done.err
    for options, told in [
        (
            ["--prompt", "is {text}", "--params", "params.json"],
            "--prompt was '{text}', and is 'is {text}' now",
        ),
        (
            ["--prompt", "{text}", "--params", "other.json"],
            "--params was {'max_tokens': 8}, and is",
        ),
        (
            ["--prompt", "{text}", "--params", "params.json", "--model", "m"],
            "--model was not given, and is 'm' now",
        ),
        (
            ["--prompt", "{text}", "--params", "params.json", "--rename", "answer=label"],
            "--rename was not given",
        ),
    ]:
        refused = shell.run("submit", "in.parquet", *common, *options)
        assert refused.code == 2
        assert told in refused.err
    reviews(shell.folder, text=["other"])
    refused = shell.run(
        "submit", "in.parquet", *common, "--prompt", "{text}", "--params", "params.json"
    )
    assert (refused.code, "the input has changed since run" in refused.err) == (2, True)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("--prompt {txt} --wait -o out.csv", "did you mean 'text'?"),
        ("--prompt {text} --wait -o out.xlsx", "use .parquet, .csv, .jsonl"),
        ("--prompt {text} --wait", "a table needs -o"),
        (
            "--system x --wait -o out.csv",
            "--system is for tables; give --prompt or --template, too",
        ),
        (
            "--max-tokens 9 --wait -o out.csv",
            "--max-tokens is for tables; give --prompt or --template, too",
        ),
        ("--wait -o out.csv", "in.parquet is a table; say what to ask"),
        ("--prompt {text} --rename x --wait -o out.csv", "write NAME=NEW"),
        (
            "--prompt {text} --rename finish_reason=text --wait -o out.csv",
            "--rename finish_reason=text_2",
        ),
    ],
)
def test_wrong_options_are_refused_and_leave_nothing(
    shell: CommandLine, options: str, told: str
) -> None:
    reviews(shell.folder)
    refused = shell.run("submit", "in.parquet", *options.split())
    assert refused.code == 2
    assert told in refused.err
    assert [path.name for path in shell.folder.iterdir()] == ["in.parquet"]


@pytest.mark.parametrize(
    ("source", "output", "told"),
    [
        ("data", "data/out.jsonl", "data/out.jsonl lies in the input data"),
        ("data/*.jsonl", "data/all.jsonl", "data/all.jsonl is the input itself"),
        ("data/**", "data/out.csv", "belongs to the unfinished output data/out.csv"),
    ],
)
def test_an_output_that_is_part_of_its_input_is_refused_and_stays(
    shell: CommandLine, source: str, output: str, told: str
) -> None:
    (shell.folder / "data/out.csv.parts").mkdir(parents=True)
    for name in ("a.jsonl", "all.jsonl", "out.csv.parts/0.jsonl"):
        (shell.folder / "data" / name).write_text('{"text": "a"}\n')
    refused = shell.run("submit", source, "--prompt", "{text}", "--wait", "-o", output, "--force")
    assert (refused.code, told in refused.err) == (2, True), refused.err
    assert (shell.folder / "data/all.jsonl").read_text() == '{"text": "a"}\n'


def test_a_missing_extra_is_named_with_its_install_line(shell: CommandLine) -> None:
    reviews(shell.folder)
    code = (
        "import sys; sys.modules.update(pyarrow=None, fsspec=None); sys.argv[1:] = ['submit', 'in.parquet',"
        " '--prompt', '{text}', '--wait', '-o', 'out.csv']; from gristmill.shared.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=shell.environment,
        cwd=shell.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert re.search(r"needs pyarrow; run: pip install .*\[tables\]", done.stderr)


async def test_bad_rows_are_refused_by_file_and_row_or_become_errors(
    shell: CommandLine, queue: Queue
) -> None:
    reviews(shell.folder, text=["a", "b"], photo=["https://example.org/x.png", "x.png"])
    command = (
        "submit",
        "in.parquet",
        "--prompt",
        "{text}",
        "--image",
        "photo",
        "--wait",
        "-o",
        "out.jsonl",
    )
    refused = shell.run(*command)
    assert refused.code == 2
    assert "1 of 2 rows of in.parquet cannot be submitted" in refused.err
    assert "in.parquet row 2: column 'photo': media URL 'x.png' is not allowed" in refused.err
    assert [path.name for path in shell.folder.iterdir()] == ["in.parquet"]
    async with SettlingWorker(queue).running():
        done = await shell.finish(*command, "--lenient")
    assert done.code == 1, done.err
    assert shell.rows("out.jsonl")[1]["error"].startswith(
        "invalid_request: in.parquet row 2: column"
    )


async def test_requests_of_a_table_are_submitted_without_waiting(
    shell: CommandLine, queue: Queue
) -> None:
    (shell.folder / "in.jsonl").write_bytes(b'{"text": "a"}\n{"text": "a"}\n{"text": null}\n')
    options = ("--prompt", "{text}", "--dedupe", "--run-name", "r", "--endpoint", "/v1/completions")
    done = shell.run("submit", "in.jsonl", *options)
    assert (done.code, done.out) == (0, "r\n"), done.err
    assert (await queue.stats()).counters["queued"] == 1
    async with SettlingWorker(queue).running():
        done = await shell.finish(
            "submit", "in.jsonl", *options, "--wait", "-o", "out.jsonl", "--json"
        )
    assert done.code == 1, done.err
    assert [done.rows[0][name] for name in ("total", "failed", "nulls", "copies")] == [3, 1, 1, 1]
    assert [row["answer"] for row in shell.rows("out.jsonl")] == ["a", "a", None]


async def test_a_table_comes_from_stdin_and_requests_from_a_compressed_file(
    shell: CommandLine, queue: Queue
) -> None:
    raw = orjson.dumps({"text": "a"})
    at = ("--endpoint", "/v1/completions")
    done = shell.run("submit", "-", "--prompt", "{text}", "--run-name", "r", *at, stdin=raw)
    assert done.code == 0, done.err
    with pa.output_stream(shell.folder / "in.jsonl.zst", compression="zstd") as stream:
        stream.write(orjson.dumps({"custom_id": "mine", "body": {"prompt": "b"}}))
    async with SettlingWorker(queue).running():
        done = await shell.finish("submit", "in.jsonl.zst", "--wait")
    assert (done.code, done.rows[0]["custom_id"]) == (0, "mine"), done.err
