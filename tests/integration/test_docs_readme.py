"""The README's examples run."""

import asyncio
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pandas as pd
from gateways import gateway_settings, running_gateway
from own_runs import OwnRuns
from stewards import TRUE as STEWARD
from stewards import steward_process
from workers import STUB, worker_process

from gristmill.local.redis_server import running_server
from gristmill.shared.connection import connect
from gristmill.shared.queue import Queue
from gristmill.shared.request import CHAT

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()


async def test_the_client_example_prints_answers_in_order(redis_url: str, tmp_path: Path) -> None:
    code = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0]
    redis = connect(redis_url)
    queue = Queue(redis, f"test-{uuid4().hex[:12]}")
    async with worker_process(STUB, redis_url, queue, tmp_path / "log"):
        environment = {"REDIS_URL": redis_url, "GRISTMILL_QUEUE": queue.keys.queue}
        ended = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    await redis.aclose()
    assert ended.stderr == ""
    lines = ended.stdout.splitlines()
    assert len(lines) == 100
    assert all(line.startswith(f"Say {n}. ") for n, line in enumerate(lines))


def test_the_first_command_runs_a_table(tmp_path: Path) -> None:
    (command,) = re.findall(r"^gristmill (run .*)$", README, re.MULTILINE)
    shell = OwnRuns("", "", tmp_path / "work")
    shell.folder.mkdir()
    (shell.folder / "reviews.csv").write_text("text\nFine.\nBroken.\n")
    done = shell.run(*shlex.split(command))
    assert done.code == 0, done.err
    assert "limit them with --max-tokens" not in done.err
    answers = pd.read_parquet(shell.folder / "labels.parquet")["answer"]
    assert [answer[:19] for answer in answers] == ["Good or bad? Fine. ", "Good or bad? Broken"]


async def test_openais_client_runs_a_file(redis_url: str, tmp_path: Path) -> None:
    code = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[1]
    redis = connect(redis_url)
    queue = Queue(redis, f"test-{uuid4().hex[:12]}")
    lines = [
        {"custom_id": f"c{n}", "method": "POST", "url": CHAT, "body": {"messages": [{"role": "user", "content": "Hi"}]}}
        for n in range(20)
    ]  # fmt: skip
    (tmp_path / "requests.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    settings = gateway_settings(redis_url, queue, tmp_path / "storage")
    with running_server() as jobs_url:  # RQ cannot use the cluster that may stand behind redis_url
        async with (
            running_gateway(settings) as gateway,
            steward_process(STEWARD, redis_url, queue.keys.queue, tmp_path, RQ_REDIS_URL=jobs_url),
            worker_process(STUB, redis_url, queue, tmp_path / "log"),
        ):
            done = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                code.replace("http://localhost:8000", gateway.url),
                cwd=tmp_path,
                stdout=subprocess.PIPE,
            )
            printed, _ = await done.communicate()
    await redis.aclose()
    assert printed == b"completed 20 of 20\n"
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 20
