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
from gristmill.shared.connection import connect
from gristmill.shared.queue import Queue
from gristmill.shared.request import FIELDS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "python.md").read_text()
OPEN, SUBMIT, RESULTS, MAP, AS_COMPLETED, SUBMITTING, ERRORS = re.findall(
    r"```python\n(.*?)```", PAGE, re.DOTALL
)


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


async def test_the_examples_run(environment: dict[str, str]) -> None:
    assert await run(OPEN, environment) == ["[('unknown', '')]"]
    (answer,) = await run(SUBMIT, environment)
    assert answer.startswith("succeeded ")
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
    unknown, conflict, expired = await run(ERRORS, environment)
    assert unknown.startswith("unknown keyword 'prioritty'; did you mean 'priority'?")
    assert conflict == "docs-error id_conflict"
    assert expired.startswith("request docs-unknown: the id is unknown")
