"""The examples of docs/python.md run, and the page lists what is public."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import fields
from pathlib import Path
from uuid import uuid4

import pytest
from workers import STUB, worker_process

import gristmill.producer
from gristmill.producer import Client, Request, Result, SyncClient
from gristmill.producer.frames.frame_options import KEYWORDS
from gristmill.shared.connection import connect
from gristmill.shared.queue import Queue
from gristmill.shared.request import FIELDS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "python.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
OPEN, SUBMIT, RESULTS, MAP, AS_COMPLETED, SUBMITTING, TABLE, FUNCTION, _, _, ERRORS = BLOCKS
"""Two more examples need an engine: test_docs_structured_outputs.py and test_own_engine.py run them."""


def first_column(heading: str) -> list[str]:
    """Return the names in the first column of the table that follows a heading."""
    lines = PAGE[PAGE.index(heading) :].split("\n\n| ")[1].split("\n\n")[0].splitlines()[2:]
    return [name for line in lines for name in re.findall(r"`(\w+)`", line.split(" | ")[0])]


def public_methods(cls: type) -> set[str]:
    return {name for name in vars(cls) if not name.startswith("_") and callable(vars(cls)[name])}


def test_the_page_lists_what_is_public() -> None:
    assert sorted(first_column("# The Python client")) == sorted(gristmill.producer.__all__)


def test_the_page_lists_every_method_of_both_clients() -> None:
    calls = set(first_column("## The calls"))
    assert public_methods(Client) - {"aclose"} == calls
    assert public_methods(SyncClient) - {"close"} == calls


def test_the_page_lists_every_field_and_its_default() -> None:
    assert sorted(first_column("A body is a dict")) == sorted(FIELDS)
    request = Request(body=b"{}")
    assert (request.priority, request.tenant, request.max_attempts) == ("normal", "default", 3)
    assert (request.deadline_s, request.delay_s) == (0, 0)


def test_the_page_lists_every_attribute_of_a_result() -> None:
    properties = {name for name, value in vars(Result).items() if isinstance(value, property)}
    attributes = {field.name for field in fields(Result)} | properties
    assert sorted(first_column("## Results")) == sorted(attributes)


@pytest.fixture
async def environment(redis_url: str, tmp_path: Path) -> AsyncIterator[dict[str, str]]:
    redis = connect(redis_url)
    queue = Queue(redis, f"test-{uuid4().hex[:12]}")
    async with worker_process(STUB, redis_url, queue, tmp_path / "log"):
        yield os.environ | {"REDIS_URL": redis_url, "GRISTMILL_QUEUE": queue.keys.queue}
    await redis.aclose()


async def run(code: str, environment: dict[str, str]) -> list[str]:
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.splitlines()


def answer(num_words: int) -> str:
    """Return the stub's answer to the function of the example."""
    words = f"{num_words // 2} of 5 stars means".split()
    return " ".join((words * 3)[:num_words])


def test_the_page_lists_every_keyword_of_a_table() -> None:
    section = PAGE[PAGE.index("## Tables") :]
    table = section.split("| keyword | what it is |")[1].split("\n\n")[0].splitlines()[2:]
    named = [name for line in table for name in re.findall(r"`(\w+)`", line.split(" | ")[0])]
    assert sorted(named) == sorted(KEYWORDS)


async def test_the_examples_run(environment: dict[str, str]) -> None:
    assert await run(OPEN, environment) == ["[('unknown', '')]"]
    (submitted,) = await run(SUBMIT, environment)
    assert submitted.startswith("succeeded ")
    _, refused = await run(RESULTS, environment)
    assert refused == "HTTP 400: max_tokens must be at least 1, got -1."
    answers = await run(MAP, environment)
    assert [line[: len(f"succeeded Say {n}.")] for n, line in enumerate(answers)] == [
        f"succeeded Say {n}." for n in range(20)
    ]
    lines = await run(AS_COMPLETED, environment)
    assert sorted(lines[:10]) == [f"{n} succeeded" for n in range(10)]
    assert sorted(lines[10:]) == [f"docs-{n} succeeded" for n in range(10)]
    assert await run(SUBMITTING, environment) == []
    table = await run(TABLE, environment)
    assert [line.split()[0] for line in table[:-1]] == ["text", "0", "1", "2"]
    assert table[-1].startswith("null_value: row 2: column 'text' is null")
    assert await run(FUNCTION, environment) == [f"[{answer(10)!r}, None, {answer(2)!r}]"]
    unknown, conflict, expired = await run(ERRORS, environment)
    assert unknown.startswith("unknown keyword 'prioritty'; did you mean 'priority'?")
    assert conflict == "docs-error id_conflict"
    assert expired.startswith("request docs-unknown: the id is unknown")
