"""`gristmill submit --schema`: a subprocess, a true server, and a worker that gives broken, cut and right answers."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import CommandLine, SettlingWorker, ended

from gristmill.shared.queue import Queue
from gristmill.shared.request import CHAT

MODELS = """
from typing import Literal
from pydantic import BaseModel

class Part(BaseModel):
    name: str
    size: int | None

class Review(BaseModel):
    label: Literal["good", "bad"]
    score: int
    parts: list[Part]
"""

REVIEW = {"label": "good", "score": 7, "parts": [{"name": "lid", "size": None}]}

PARAMS = {"max_tokens": 20, "temperature": 0}

COMMAND = (
    "submit", "in.jsonl", "--prompt", "{text}", "--schema", "models:Review", "--params", "params.json", "--wait",
    "-o", "out.parquet", "--json",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "models.py").write_text(MODELS)
    (tmp_path / "params.json").write_bytes(orjson.dumps(PARAMS))
    return tmp_path


@pytest.fixture
def shell(redis_url: str, folder: Path) -> CommandLine:
    return CommandLine(redis_url, f"test-{uuid4().hex[:12]}", folder)


@pytest.fixture
async def queue(shell: CommandLine) -> AsyncIterator[Queue]:
    async with shell.open_queue() as queue:
        yield queue


def chat(text: str, reason: str, num_tokens: int) -> dict[str, Any]:
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": reason}
    usage = {"prompt_tokens": 5, "completion_tokens": num_tokens}
    return {"model": "m", "choices": [choice], "usage": usage}


def answer(_: str, body: Any) -> dict[str, Any]:
    """Answer right if the prompt says so, or `long` and there is room for it."""
    asked, limit = body["messages"][-1]["content"], body["max_tokens"]
    assert body["response_format"]["json_schema"]["schema"]["required"] == list(REVIEW)
    if asked == "right" or (asked == "long" and limit > PARAMS["max_tokens"]):
        return chat(orjson.dumps(REVIEW).decode(), "stop", 12)
    if asked == "broken":
        return chat('{"label": "odd", "score": 1, "parts": []}', "stop", 12)
    return chat('{"label": "go', "length", limit)


async def test_broken_cut_and_right_answers_become_typed_columns(
    shell: CommandLine, queue: Queue
) -> None:
    texts = ["right", "broken", "long", "endless", "right", "long"]
    shell.write("in.jsonl", [{"text": text} for text in texts])
    facts: dict[str, str | int] = {"models": "m", "endpoints": CHAT, "max_model_len": 30}
    async with SettlingWorker(queue, answer, facts).running() as worker:
        done = await shell.finish(*COMMAND)
    assert done.code == 1, done.err
    assert '2 of 6 failed, e.g. row 2: schema_mismatch: label: "odd" is not one of' in done.err
    summary = done.rows[0]
    assert [summary[name] for name in ("succeeded", "failed", "copies")] == [4, 2, 2]
    assert summary["cut"] == 1
    assert "1 of 6 answers were cut at their limit of tokens" in done.err
    assert summary["output_tokens"] == 12 + 12 + (20 + 12) + (20 + 30)
    run = summary["run"]
    asked = [f"{run}-{end}" for end in ("1", "2", "3", "4", "3-again30", "4-again30")]
    assert sorted(worker.answered) == sorted(asked)
    assert await queue.results(asked) == [None] * len(asked)  # the values are in the output alone
    written = pq.read_table(shell.folder / "out.parquet")
    parts = pa.list_(pa.struct([("name", pa.string()), ("size", pa.int64())]))
    assert [written.schema.field(name).type for name in REVIEW] == [pa.string(), pa.int64(), parts]
    rows = written.to_pylist()
    assert [{name: row[name] for name in REVIEW} for row in rows] == [
        REVIEW if text in ("right", "long") else dict.fromkeys(REVIEW) for text in texts
    ]
    assert rows[3]["error"].startswith("cut_answer: the JSON had no end after 30 tokens")
    assert (rows[3]["answer"], rows[3]["finish_reason"]) == ('{"label": "go', "length")
    assert rows[1]["answer"].startswith('{"label": "odd"')
    (shell.folder / "models.py").write_text(MODELS.replace("score", "points"))
    refused = shell.run(*COMMAND)
    assert refused.code == 2
    assert "began with other options: --schema was {" in refused.err


async def test_a_killed_run_neither_loses_nor_repeats_a_second_asking(
    shell: CommandLine, queue: Queue
) -> None:
    shell.write("in.jsonl", [{"text": text} for text in ("right", "long", "long")])
    is_holding = True

    def held(request_id: str, body: Any) -> Any:
        return None if is_holding and "again" in request_id else answer(request_id, body)

    async with SettlingWorker(queue, held).running() as worker:
        process = await shell.start(*COMMAND)
        while not worker.held:
            assert process.returncode is None
            await asyncio.sleep(0.01)
        process.kill()
        await ended(process)
        is_holding = False
        await worker.release()
        done = await shell.finish(*COMMAND)
    assert done.code == 0, done.err
    assert max(Counter(worker.answered).values()) == 1
    assert len(worker.answered) == 3  # two rows ask the same
    assert list(pd.read_parquet(shell.folder / "out.parquet")["score"]) == [7, 7, 7]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("--schema none.json", "none.json"),
        ("--schema models:Other", "--schema models:Other cannot be imported: AttributeError"),
        ("--parse json", "--parse json needs --schema"),
        ("--schema models:Review --rename label=text", "--rename label=text_2"),
    ],
)
def test_a_wrong_schema_is_refused_before_redis_is_asked_and_leaves_nothing(
    folder: Path, options: str, told: str
) -> None:
    shell = CommandLine("redis://127.0.0.1:1", "q", folder)
    shell.write("in.jsonl", [{"text": "right"}])
    names = {path.name for path in shell.folder.iterdir()}
    refused = shell.run(
        "submit", "in.jsonl", "--prompt", "{text}", "--wait", "-o", "out.csv", *options.split()
    )
    assert (refused.code, told in refused.err) == (2, True), refused.err
    left = {path.name for path in shell.folder.iterdir()} - {"__pycache__"}
    assert left == names
