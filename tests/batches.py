"""Steps that the tests of batches share: opened batches, input lines, stewards of one step."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson

from gristmill.producer.batches.batch_service import Batches
from gristmill.producer.batches.batch_spec import BatchSpec
from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.batches.lifecycle import advance
from gristmill.producer.batches.objects import BatchRecord, FileObject
from gristmill.producer.batches.settings import BatchSettings
from gristmill.producer.batches.storage import Storage
from gristmill.producer.batches.upload import Upload
from gristmill.shared.queue import Queue

TENANT = "acme"
CHAT = "/v1/chat/completions"


def open_batches(queue: Queue, storage_url: str | Path, **settings: Any) -> Batches:
    """Return the batches and files of a test's queue."""
    of_batches = BatchSettings(queue=queue.keys.queue, **settings)
    return Batches(BatchStore(queue, Storage(str(storage_url)), of_batches))


def chat(custom_id: str, url: str = CHAT, **body: Any) -> dict[str, Any]:
    """Return a line of OpenAI's format."""
    messages = [{"role": "user", "content": "hi"}]
    fields = {"model": "stub", "messages": messages, "max_tokens": 4} | body
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": fields}


def jsonl(lines: Iterable[Any]) -> bytes:
    raw = [line if isinstance(line, bytes) else orjson.dumps(line) for line in lines]
    return b"".join(line + b"\n" for line in raw)


async def upload(batches: Batches, data: bytes, tenant: str = TENANT) -> FileObject:
    async with Upload(batches.files, tenant) as file:
        file.write(data)
        return await file.finish("in.jsonl")


async def create(
    batches: Batches, lines: Iterable[Any], max_open: int | None = None, **options: Any
) -> BatchRecord:
    """Upload lines and create a batch of them."""
    file = await upload(batches, jsonl(lines))
    spec = BatchSpec(**({"input_file_id": file.id, "endpoint": CHAT} | options))
    return await batches.create(TENANT, spec, max_open=max_open)


async def run(
    batches: Batches, batch: BatchRecord, *, until: Callable[[BatchRecord], bool] | None = None
) -> BatchRecord:
    """Be the steward until nothing is left to do for a batch, or until a condition holds."""
    while True:
        state = await batches.store.records.state(batch.id)
        if until(state.record) if until else state.phase is None:
            return await batches.batch(TENANT, batch.id)
        if state.phase == "announce":
            await batches.store.records.mark_announced(batch.id)
        await advance(batches.store, batch.id, Steps(10))


class Steps:
    """Says that a slice may go on, a number of times."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __call__(self, idle_s: float) -> bool:
        self._number -= 1
        return self._number >= 0


def files_in(folder: Path) -> list[str]:
    """Return what lies in a local storage, each as its path below the root."""
    return [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]


async def rows_of(
    batches: Batches, file_id: str | None, tenant: str = TENANT
) -> list[dict[str, Any]]:
    """Return the rows of a file of results."""
    if file_id is None:
        return []
    file = await batches.files.get(tenant, file_id)
    return [orjson.loads(row) for row in b"".join(batches.files.content(file)).splitlines()]


async def all_rows(
    batches: Batches, batch: BatchRecord, tenant: str = TENANT
) -> list[dict[str, Any]]:
    files = (batch.output_file_id, batch.error_file_id)
    return [row for file_id in files for row in await rows_of(batches, file_id, tenant)]


@asynccontextmanager
async def stewarded(batches: Batches) -> AsyncIterator[None]:
    """Be the steward of a queue for the length of a block."""
    is_over = False

    async def steward() -> None:
        while not is_over:
            for work in await batches.store.due.batches("webhooks"):
                await batches.store.due.announced(work.batch)
            for kind in ("steps", "files"):
                for work in await batches.store.due.batches(kind):
                    await advance(batches.store, work.batch, lambda _: not is_over)
            queue = batches.store.queue
            await queue.redis.blpop([queue.keys.steward_doorbell], timeout=0.1)

    task = asyncio.create_task(steward())
    try:
        yield
    finally:
        is_over = True
        await task
