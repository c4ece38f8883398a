"""`--dry-run` and `--preview` as their users see them, with the stub engine."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import pytest
from command_line import CommandLine, SettlingWorker, interrupt
from models import tiny_model
from own_runs import FLAGS, OwnRuns
from workers import STUB, worker_process

from gristmill.shared.queue import Queue

pytestmark = pytest.mark.timeout(120)

ASK = ("--prompt", "Say: {text}", "--params", "params.json")


@pytest.fixture
def shell(redis_url: str, tmp_path: Path) -> CommandLine:
    folder = tmp_path / "work"
    folder.mkdir()
    return CommandLine(redis_url, f"test-{uuid4().hex[:12]}", folder)


@pytest.fixture
async def queue(shell: CommandLine) -> AsyncIterator[Queue]:
    async with shell.open_queue() as queue:
        yield queue


def write_input(folder: Path, num_rows: int = 200) -> None:
    """Write rows that are all different, then a copy and a null."""
    texts: list[str | None] = [
        f"row {number} " + "fox " * (number % 7) for number in range(num_rows)
    ]
    rows = [{"text": text} for text in [*texts, texts[0], None]]
    (folder / "in.jsonl").write_bytes(b"\n".join(map(orjson.dumps, rows)))
    (folder / "params.json").write_text('{"max_tokens": 8, "temperature": 0}')


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


async def keys_of(queue: Queue, pattern: str) -> list[Any]:
    return [key async for key in queue.redis.scan_iter(f"*{pattern}*")]


async def test_a_dry_run_counts_and_leaves_nothing(shell: CommandLine, queue: Queue) -> None:
    write_input(shell.folder)
    before = names(shell.folder)
    command = ("submit", "in.jsonl", *ASK, "--wait", "-o", "out.parquet", "--dry-run")
    done = shell.run(*command, "--json", "--tokenizer", str(tiny_model()))
    assert done.code == 1, done.err  # a row has a null
    facts = done.rows[0]
    assert (facts["rows"], facts["requests"], facts["duplicates"], facts["nulls"]) == (
        202,
        200,
        1,
        1,
    )
    assert facts["has_tokenizer"]
    assert facts["prompt_tokens"]["low"] == facts["prompt_tokens"]["high"] > 200 * 10
    assert facts["max_output_tokens"]["value"] == 200 * 8
    assert "200 of 202 rows are requests; copies: 1, nulls: 1" in done.err
    assert "counted with the tokenizer of" in done.err
    estimated = shell.run(*command, "--skip-null")
    assert estimated.code == 0, estimated.err
    assert "estimated as a quarter of the bytes" in estimated.err
    assert names(shell.folder) == before
    assert await keys_of(queue, queue.keys.queue) == []


@pytest.fixture
def own(tmp_path: Path) -> OwnRuns:
    """A machine without a Redis."""
    folder = tmp_path / "work"
    folder.mkdir()
    return OwnRuns("", "", folder)


def test_a_dry_run_of_lines_samples_many_and_finds_rows_that_are_too_long(tmp_path: Path) -> None:
    own = OwnRuns("", "", tmp_path, has_stub=False)
    lines = [
        {"prompt": "the fox " * (3_000 if number % 100 == 0 else 2)} for number in range(10_500)
    ]
    own.write("in.jsonl", lines)
    model = ("--", "--model", str(tiny_model()))
    done = own.run("run", "in.jsonl", "-o", "out.jsonl", "--json", "--dry-run", *model)
    assert done.code == 1, done.err
    facts = done.rows[0]
    assert (facts["counted_requests"], facts["is_sample"]) == (10_000, True)
    assert (facts["max_model_len"], facts["queue"]) == (2_048, "embedded")
    assert facts["too_long"] == pytest.approx(105, abs=10)
    assert facts["too_long_rows"][0] % 100 == 1
    exact = facts["prompt_tokens"]
    assert exact["low"] < exact["value"] < exact["high"]
    assert "drawn at random" in done.err
    assert names(own.folder) == {"in.jsonl"}


async def test_a_preview_predicts_and_the_run_says_how_far_off_it_was(
    shell: CommandLine, queue: Queue
) -> None:
    write_input(shell.folder)
    command = (
        "submit", "in.jsonl", *ASK, "--skip-null", "--wait", "-o", "out.jsonl",
    )  # fmt: skip
    async with worker_process(STUB, shell.redis_url, queue, shell.folder / "log") as worker:
        before = names(shell.folder)
        shown = await shell.finish(*command, "--preview", "20")
        assert shown.code == 0, shown.err
        for told in (
            "preview: 20 of 200 requests run",
            "│ Say: row ",
            "predicted for all 200 requests",
        ):
            assert told in shown.err
        assert names(shell.folder) == before | {"out.jsonl.preview"}
        assert await keys_of(queue, "preview-") == []
        done = await shell.finish(*command)
        assert done.code == 0, done.err
        ran = [event["id"] for event in worker.events("request.completed")]
    assert len(ran) == 220
    kept = orjson.loads((shell.folder / "out.jsonl.preview").read_bytes())["prediction"]
    assert kept["output_tokens"]["value"] == pytest.approx(200 * 8, rel=0.2)
    assert f"predicted {kept['output_tokens']['value']:,.0f}"[:12] in done.err
    assert "output tokens, " in done.err
    assert "; took 1,6" in done.err


async def test_a_preview_shows_the_fields_of_a_schema_and_failed_rows(
    shell: CommandLine, queue: Queue
) -> None:
    write_input(shell.folder)
    properties = {"label": {"type": "string"}, "score": {"type": "integer"}}
    schema = {"type": "object", "properties": properties, "required": ["label"]}
    (shell.folder / "schema.json").write_bytes(orjson.dumps(schema))

    def answer(request_id: str, _body: Any) -> Any:
        text = "no json" if request_id.endswith("-1") else '{"label": "good", "score": 7}'
        message = {"finish_reason": "stop", "message": {"content": text}}
        return {"choices": [message], "usage": {"prompt_tokens": 9, "completion_tokens": 4}}

    command = ("submit", "in.jsonl", *ASK, "--schema", "schema.json", "--preview", "202", "--json")
    async with SettlingWorker(queue, answer).running():
        done = await shell.finish(*command)
    assert done.code == 1, done.err
    facts = done.rows[0]
    rows = {row["row"]: row for row in facts["rows"]}
    assert (rows[2]["fields"], rows[2]["error"]) == ({"label": "good", "score": 7}, None)
    assert rows[1]["error"].startswith("no_json: ")
    assert facts["failed"] == 1
    assert len(rows) == facts["requests"] == 200
    assert facts["prediction"]["output_tokens"] == {"value": 800, "low": 800, "high": 800}
    assert "1 of 200 failed, e.g. row 1: no_json" in done.err
    heading = done.err[done.err.index("question") :].splitlines()[0]
    assert [cell.strip() for cell in heading.split("┃")][1:5] == [
        "label",
        "score",
        "error",
        "tokens",
    ]


async def test_an_interrupted_preview_leaves_no_request(shell: CommandLine, queue: Queue) -> None:
    write_input(shell.folder)
    worker = SettlingWorker(queue, lambda *_: None)
    async with worker.running():
        process = await shell.start("submit", "in.jsonl", *ASK, "--preview", "20")
        while len(worker.held) < 20:
            assert process.returncode is None
            await asyncio.sleep(0.01)
        done = await interrupt(process)
    assert done.code == 130, done.err
    assert await keys_of(queue, "preview-") == []
    assert (await queue.stats()).counters.get("in_flight", 0) == 0
    assert not (shell.folder / "out.jsonl").exists()


async def test_a_preview_of_an_unfinished_run_is_refused(shell: CommandLine, queue: Queue) -> None:
    write_input(shell.folder)
    command = ("submit", "in.jsonl", *ASK, "--wait", "-o", "out.jsonl")
    worker = SettlingWorker(queue, lambda *_: None)
    async with worker.running():
        process = await shell.start(*command)
        while not worker.held:
            assert process.returncode is None
            await asyncio.sleep(0.01)
        await interrupt(process)
        refused = await shell.finish(*command, "--preview", "5")
        assert (refused.code, "belongs to the unfinished run" in refused.err) == (2, True)
        resumable = await shell.finish(*command, "--dry-run")
        assert resumable.code == 1, resumable.err


async def test_a_preview_on_own_workers_ends_them_and_writes_no_output(own: OwnRuns) -> None:
    write_input(own.folder)
    command = ("run", "in.jsonl", "-o", "out.parquet", *ASK, "--skip-null")
    before = names(own.folder)
    done = await own.finish(*command, "--preview", "10", "--json", *FLAGS)
    assert done.code == 0, done.err
    assert "time at the pace of this preview, 10 requests at a time" in done.err
    assert done.rows[0]["prediction"]["requests"] == 200
    assert names(own.folder) == before | {"out.parquet.preview", "out.parquet.log"}
    ran = await own.finish(*command, *FLAGS)
    assert (ran.code, "predicted 1,6" in ran.err) == (0, True), ran.err


async def test_a_preview_on_own_workers_leaves_no_queue_in_the_users_redis(
    shell: CommandLine, queue: Queue
) -> None:
    write_input(shell.folder)
    own = OwnRuns(shell.redis_url, "", shell.folder)
    known = set(await keys_of(queue, "run-"))
    command = ("run", "in.jsonl", "-o", "out.parquet", *ASK, "--preview", "10", *FLAGS)
    done = await own.finish(*command)
    assert done.code == 0, done.err
    assert {key for key in await keys_of(queue, "run-") if key not in known} == set()
