"""Test a base model and its LoRA adapter on one engine: names, answers and routing."""

import os
import subprocess
from pathlib import Path
from uuid import uuid4

import orjson
import pytest
from models import lora_adapter
from workers import TRUE, worker_process

from gristmill.producer import Client
from gristmill.shared.connection import connect
from gristmill.shared.operations import Limits
from gristmill.shared.queue import Queue
from gristmill.shared.request import COMPLETIONS, Request
from gristmill.shared.results import Result


def completion(model: str) -> Request:
    body = {"model": model, "prompt": "the quick brown fox", "max_tokens": 12, "temperature": 0}
    return Request.from_body(body | {"ignore_eos": True}, endpoint=COMPLETIONS)


def text_of(result: Result) -> str:
    assert result.body is not None, result
    return str(result.body["choices"][0]["text"])


async def test_adapter_is_a_model_of_its_own_beside_the_base(
    redis_url: str, model_dir: Path, tmp_path: Path
) -> None:
    adapter = lora_adapter(tmp_path / "adapter")
    argv = [
        *("--", "--model", str(model_dir), "--served-model-name", "tiny", "--enforce-eager"),
        *("--max-num-seqs", "4", "--kv-cache-memory-bytes", str(64 * 2**20)),
        *("--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"poet={adapter}"),
    ]
    queue = Queue(connect(redis_url), f"test-{uuid4().hex[:12]}", Limits(lease_ms=10_000))
    environment = {"OMP_NUM_THREADS": "1"}
    async with (
        Client(queue=queue) as client,
        worker_process(TRUE, redis_url, queue, tmp_path / "log", argv, **environment),
    ):
        (worker,) = (await queue.stats()).workers
        facts = await queue.redis.hgetall(queue.keys.worker(worker))
        models = ("tiny", "poet", "tiny", "poet")
        results = [result async for result in client.map([completion(model) for model in models])]
    assert facts[b"models"] == b"tiny,poet"
    assert [result.status for result in results] == ["succeeded"] * 4
    assert [result.body["model"] for result in results if result.body] == list(models)
    base, poet, base_again, poet_again = map(text_of, results)
    assert base != poet
    assert (base_again, poet_again) == (base, poet)


@pytest.mark.long
def test_adapter_that_cannot_be_loaded_ends_the_worker_with_one_event(
    redis_url: str, model_dir: Path, tmp_path: Path
) -> None:
    argv = [
        *("--", "--model", str(model_dir), "--enforce-eager", "--max-num-seqs", "4"),
        *("--kv-cache-memory-bytes", str(64 * 2**20), "--enable-lora"),
        *("--lora-modules", f"poet={tmp_path / 'absent'}"),
    ]
    environment = {"OMP_NUM_THREADS": "1", "REDIS_URL": redis_url, "GRISTMILL_HEALTH_PORT": "0"}
    ended = subprocess.run(
        [*TRUE, *argv], capture_output=True, env=os.environ | environment, check=False
    )
    assert ended.returncode == 1
    lines = ended.stdout.splitlines()
    (event,) = [
        line for line in map(orjson.loads, filter(is_json, lines)) if line["level"] == "error"
    ]
    assert event["event"] == "engine.not_started"
    assert "the engine did not start: " in event["error"]
    assert "poet" in event["error"]
    # Lines of vLLM's own log begin with its process.
    assert not [line for line in ended.stderr.splitlines() if line.startswith(b"Traceback")]


def is_json(line: bytes) -> bool:
    return line.startswith(b"{")
