"""The examples of docs/results.md run: in Python on a worker, with jq on the rows of a run."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest
from workers import STUB, worker_process

from gristmill.shared.connection import connect
from gristmill.shared.queue import Queue

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "results.md").read_text()
PROGRAMS = re.findall(r"jq -\w+ '(.*?)' results\.jsonl", PAGE.replace("\\|", "|"))
ROWS = [
    {"custom_id": "a", "response": {"status_code": 200, "body": {"choices": [{"message": {"content": "x"}}],
     "usage": {"completion_tokens": 3}}}, "error": None},
    {"custom_id": "b", "response": {"status_code": 400, "body": {"error": {"message": "no"}}}, "error": None},
    {"custom_id": "c", "response": None, "error": {"code": "engine_killed", "message": "it died"}},
]  # fmt: skip


async def test_the_python_example_prints_text_and_usage(redis_url: str, tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    redis = connect(redis_url)
    queue = Queue(redis, f"test-{uuid4().hex[:12]}")
    async with worker_process(STUB, redis_url, queue, tmp_path / "log"):
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", code],
            env=os.environ | {"REDIS_URL": redis_url, "GRISTMILL_QUEUE": queue.keys.queue},
            capture_output=True,
            text=True,
            check=False,
        )
    await redis.aclose()
    assert done.stderr == ""
    answered, refused = done.stdout.splitlines()
    assert answered.startswith("Name a colour.")
    assert answered.endswith(" 8")
    assert "failed" in refused


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
@pytest.mark.parametrize(
    ("options", "program", "printed"),
    [
        ("-r", 0, "a\tx\nb\t\nc\t\n"),
        ("-c", 1, None),
        ("-r", 2, "200\n400\nengine_killed\n"),
        ("-s", 3, "3\n"),
    ],
)
def test_the_programs_of_jq_print_what_the_page_says(
    options: str, program: int, printed: str | None
) -> None:
    code = PROGRAMS[program].split(" | sort")[0]
    text = "\n".join(json.dumps(row) for row in ROWS)
    done = subprocess.run(
        ["jq", options, code], input=text, capture_output=True, text=True, check=True
    )
    if printed is None:
        assert [json.loads(line)["custom_id"] for line in done.stdout.splitlines()] == ["b", "c"]
    else:
        assert done.stdout == printed
