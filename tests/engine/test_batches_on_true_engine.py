"""Test OpenAI's unmodified client against gateway, steward and a worker with a real engine."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

import orjson
import pytest
import pytest_asyncio
from gateways import RunningGateway, gateway_settings, running_gateway
from openai import AsyncOpenAI, BadRequestError
from openai.types import Batch
from stewards import TRUE as TRUE_STEWARD
from stewards import steward_process
from workers import TRUE, worker_process

from gristmill.shared.connection import connect
from gristmill.shared.operations import Limits
from gristmill.shared.queue import Queue

MODEL = "tiny"
CHAT: Final = "/v1/chat/completions"


@dataclass
class Site:
    """The running processes, and a tenant's client."""

    gateway: RunningGateway
    client: AsyncOpenAI

    async def create(self, lines: list[bytes]) -> Batch:
        file = await self.client.files.create(file=("in.jsonl", b"\n".join(lines)), purpose="batch")
        return await self.client.batches.create(
            input_file_id=file.id, endpoint=CHAT, completion_window="24h"
        )

    async def until(self, batch: Batch, *statuses: str) -> Batch:
        while (batch := await self.client.batches.retrieve(batch.id)).status not in statuses:
            await asyncio.sleep(0.1)
        return batch

    async def rows(self, file_id: str | None) -> list[dict[str, object]]:
        content = await self.client.files.content(file_id or "")
        return [orjson.loads(row) for row in content.text.splitlines()]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(
    redis_url: str, model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    redis = connect(redis_url)
    queue = Queue(redis, f"test-{uuid4().hex[:12]}", Limits(lease_ms=3000))
    argv = [
        *("--", "--model", str(model_dir), "--served-model-name", MODEL, "--enforce-eager"),
        *("--max-num-seqs", "8", "--kv-cache-memory-bytes", str(64 * 2**20)),
    ]
    settings = gateway_settings(redis_url, queue, folder / "storage")
    async with (
        running_gateway(settings) as gateway,
        steward_process(TRUE_STEWARD, redis_url, queue.keys.queue, folder),
        worker_process(TRUE, redis_url, queue, folder / "worker.log", argv, OMP_NUM_THREADS="1"),
        gateway.openai(await gateway.add_tenant("acme")) as client,
    ):
        yield Site(gateway, client)
    await redis.aclose()


def line(number: int, max_tokens: int = 8) -> bytes:
    messages = [{"role": "user", "content": f"Say {number}."}]
    body = {"model": MODEL, "messages": messages, "max_tokens": max_tokens, "temperature": 0}
    fields = {"custom_id": f"row-{number}", "method": "POST", "url": CHAT, "body": body}
    return orjson.dumps(fields)


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_upload_create_poll_and_download(site: Site) -> None:
    batch = await site.create([line(number) for number in range(40)])
    assert (batch.status, batch.object) == ("validating", "batch")
    batch = await site.until(batch, "completed")
    assert batch.request_counts
    assert (batch.request_counts.total, batch.request_counts.completed) == (40, 40)
    assert (batch.model, batch.error_file_id) == (MODEL, None)
    assert batch.usage
    rows = await site.rows(batch.output_file_id)
    assert sorted(str(row["custom_id"]) for row in rows) == sorted(f"row-{n}" for n in range(40))
    answers = [row["response"] for row in rows]
    assert all(isinstance(answer, dict) and answer["status_code"] == 200 for answer in answers)
    tokens = [answer["body"]["usage"]["completion_tokens"] for answer in answers]  # type: ignore[index]
    assert batch.usage.output_tokens == sum(tokens)


async def test_a_line_that_the_engine_rejects_is_a_row_of_the_error_file(site: Site) -> None:
    too_long = orjson.loads(line(1))
    too_long["body"]["messages"][0]["content"] = "word " * 5000
    batch = await site.until(await site.create([line(0), orjson.dumps(too_long)]), "completed")
    assert batch.request_counts
    assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 1)
    (row,) = await site.rows(batch.error_file_id)
    assert (row["custom_id"], row["error"]) == ("row-1", None)
    response = row["response"]
    assert isinstance(response, dict)
    assert response["status_code"] == 400


async def test_cancel_while_it_runs(site: Site) -> None:
    batch = await site.create([line(number, max_tokens=200) for number in range(200)])
    await site.until(batch, "in_progress")
    cancelling = await site.client.batches.cancel(batch.id)
    assert cancelling.status == "cancelling"
    batch = await site.until(batch, "cancelled")
    assert batch.request_counts
    assert batch.cancelled_at
    rows = [row for file_id in (batch.output_file_id, batch.error_file_id) if file_id for row in await site.rows(file_id)]  # fmt: skip
    assert sorted(str(row["custom_id"]) for row in rows) == sorted(f"row-{n}" for n in range(200))
    with pytest.raises(BadRequestError, match="is cancelled"):
        await site.client.batches.cancel(batch.id)


async def test_a_bad_file_is_created_and_then_fails_with_its_lines(site: Site) -> None:
    lines = [line(0), b"[1,2]", line(0), line(3)]
    batch = await site.until(await site.create(lines), "failed")
    assert batch.errors
    errors = [(error.code, error.line) for error in batch.errors.data or ()]
    assert errors == [("invalid_json_line", 2), ("duplicate_custom_id", 3)]


async def test_lists_are_paged_by_the_client_itself(site: Site) -> None:
    made = [(await site.create([b"[]"])).id for _ in range(3)]
    listed = [batch.id async for batch in site.client.batches.list(limit=2)]
    assert listed[:3] == list(reversed(made))
    files = [file.id async for file in site.client.files.list(limit=2, order="asc")]
    assert len(files) == len(set(files)) >= 3
    deleted = await site.client.files.delete(files[0])
    assert deleted.deleted
