"""The examples of docs/structured-outputs.md run on a true engine."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

from workers import TRUE, worker_process

from gristmill.shared.connection import connect
from gristmill.shared.queue import Queue

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "structured-outputs.md").read_text()
PERSONS, REVIEWS, RHYMES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


async def test_the_examples_run(redis_url: str, argv: list[str], tmp_path: Path) -> None:
    redis = connect(redis_url)
    queue = Queue(redis, f"test-{uuid4().hex[:12]}")

    async def run(code: str) -> str:
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", code],
            env=os.environ | {"REDIS_URL": redis_url, "GRISTMILL_QUEUE": queue.keys.queue},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stderr == ""
        return done.stdout

    flags = ("--", *argv)
    async with worker_process(TRUE, redis_url, queue, tmp_path / "log", flags, OMP_NUM_THREADS="1"):
        persons = (await run(PERSONS)).splitlines()
        reviews = await run(REVIEWS)
        rhymes = await run(RHYMES)
    await redis.aclose()
    # The tiny model is random: its JSON may not end within the limit, and that is what it says then.
    cut = "max_tokens is too small for the answer"
    assert len(persons) == 2
    assert all(line.startswith("name=") or line == cut for line in persons)
    assert len(re.findall(r"\b(?:positive|negative)\b", reviews.replace("I love it.", ""))) >= 2
    assert [line.split()[0] for line in rhymes.splitlines()[:2]] == ["101", "102"]
