"""One file, two models in two queues, one gateway: OpenAI's client, stewards that die, and vLLM's engine."""

import asyncio
from pathlib import Path
from typing import Final
from uuid import uuid4

import orjson
import pytest
from gateways import gateway_settings, running_gateway
from stewards import TRUE as TRUE_STEWARD
from stewards import steward_process
from workers import TRUE, worker_process

from gristmill.shared.audit import audit
from gristmill.shared.connection import connect
from gristmill.shared.operations import Limits
from gristmill.shared.queue import Queue

CHAT: Final = "/v1/chat/completions"
MODELS = ("tiny-a", "tiny-b")
NUM_LINES = 60


def argv(model_dir: Path, name: str) -> list[str]:
    return [
        *("--", "--model", str(model_dir), "--served-model-name", name, "--enforce-eager"),
        *("--max-num-seqs", "8", "--kv-cache-memory-bytes", str(64 * 2**20)),
    ]


def lines() -> bytes:
    made = []
    for n in range(NUM_LINES):
        messages = [{"role": "user", "content": f"Say {n}."}]
        body = {"model": MODELS[n % 2], "messages": messages, "max_tokens": 8, "temperature": 0}
        made.append({"custom_id": f"row-{n}", "method": "POST", "url": CHAT, "body": body})
    return b"\n".join(map(orjson.dumps, made))


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("redis_url", ["server"], indirect=True)
async def test_a_model_at_zero_workers_waits_and_then_ends_the_batch(
    redis_url: str, model_dir: Path, tmp_path: Path
) -> None:
    redis = connect(redis_url)
    first = Queue(redis, f"test-{uuid4().hex[:12]}", Limits(lease_ms=3000))
    second = Queue(redis, f"{first.keys.queue}-b", Limits(lease_ms=3000))
    settings = gateway_settings(
        redis_url, first, tmp_path / "storage", gateway_queues=second.keys.queue,
        gateway_models=f"tiny-b={second.keys.queue}",
    )  # fmt: skip
    names = (first.keys.queue, second.keys.queue)
    async with (
        running_gateway(settings) as gateway,
        gateway.openai(await gateway.add_tenant("acme")) as client,
    ):
        file = await client.files.create(file=("in.jsonl", lines()), purpose="batch")
        async with (
            steward_process(TRUE_STEWARD, redis_url, names[0], tmp_path) as one,
            steward_process(TRUE_STEWARD, redis_url, names[1], tmp_path) as two,
            worker_process(TRUE, redis_url, first, tmp_path / "a.log", argv(model_dir, "tiny-a"), OMP_NUM_THREADS="1"),
        ):  # fmt: skip
            batch = await client.batches.create(
                input_file_id=file.id, endpoint=CHAT, completion_window="24h"
            )
            while True:
                batch = await client.batches.retrieve(batch.id)
                assert batch.request_counts
                if batch.request_counts.completed == NUM_LINES // 2:
                    break
                await asyncio.sleep(0.1)
            assert batch.status == "in_progress"
            one.kill()
            two.kill()
        async with (
            steward_process(TRUE_STEWARD, redis_url, names[0], tmp_path),
            steward_process(TRUE_STEWARD, redis_url, names[1], tmp_path),
            worker_process(TRUE, redis_url, second, tmp_path / "b.log", argv(model_dir, "tiny-b"), OMP_NUM_THREADS="1"),
        ):  # fmt: skip
            while (batch := await client.batches.retrieve(batch.id)).status != "completed":
                assert batch.status in {"in_progress", "finalizing"}
                await asyncio.sleep(0.1)
        assert batch.request_counts
        assert (batch.request_counts.completed, batch.error_file_id) == (NUM_LINES, None)
        content = await client.files.content(batch.output_file_id or "")
        rows = [orjson.loads(row) for row in content.text.splitlines()]
        assert [row["custom_id"] for row in rows] == [f"row-{n}" for n in range(NUM_LINES)]
        assert [row["response"]["body"]["model"] for row in rows] == [*MODELS] * (NUM_LINES // 2)
        tokens = sum(row["response"]["body"]["usage"]["completion_tokens"] for row in rows)
        assert batch.usage
        assert batch.usage.output_tokens == tokens
        assert [each.id async for each in client.batches.list()] == [batch.id]
        for queue in (first, second):
            assert await audit(queue) == []
            assert (await queue.stats()).counters["succeeded"] == NUM_LINES // 2
    await redis.aclose()
