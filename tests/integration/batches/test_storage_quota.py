"""The bytes that the storage keeps for a tenant: counted from the upload to the last delete, and bounded."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from batches import TENANT, chat, create, jsonl, open_batches, rows_of, run, upload
from command_line import SettlingWorker

from gristmill.producer.batches.batch_service import Batches
from gristmill.producer.batches.batch_spec import BatchSpec
from gristmill.producer.batches.lifecycle.execution import Execution
from gristmill.producer.batches.stored_files import UPLOAD_TTL_S
from gristmill.producer.batches.upload import Upload
from gristmill.producer.tenants import Tenant, Tenants
from gristmill.shared.errors import StorageQuotaReached
from gristmill.shared.queue import Queue


@pytest.fixture
def batches(queue: Queue, tmp_path: Path) -> Batches:
    return open_batches(queue, tmp_path / "storage")


@pytest.fixture
async def worker(queue: Queue) -> AsyncIterator[SettlingWorker]:
    async with SettlingWorker(queue).running() as running:
        yield running


@pytest.mark.usefixtures("worker")
async def test_the_count_is_that_of_the_files_at_every_commit_and_zero_at_the_end(
    batches: Batches, queue: Queue, tmp_path: Path
) -> None:
    def stored() -> int:
        files = (tmp_path / "storage").rglob("*")
        return sum(file.stat().st_size for file in files if file.is_file())

    lines: list[Any] = [*(chat(f"c{n}") for n in range(20)), b"broken"]
    batch = await create(batches, lines, mode="lenient")
    use = batches.files.use
    assert await use.num_bytes(TENANT) == len(jsonl(lines))
    await run(batches, batch, until=lambda record: record.status == "finalizing")
    skipped_bytes = 8  # the note of the bad line goes with the parts
    assert await use.num_bytes(TENANT) == stored() - skipped_bytes
    ended = await run(batches, batch)
    assert await use.num_bytes(TENANT) == stored()
    for file_id in (ended.input_file_id, ended.output_file_id, ended.error_file_id):
        await batches.files.delete(TENANT, file_id or "")
    assert await use.num_bytes(TENANT) == stored() == 0
    assert not await queue.redis.exists(queue.keys.storage(TENANT))


async def test_an_upload_that_died_gives_its_bytes_back(batches: Batches, queue: Queue) -> None:
    await Tenants(queue.redis).create(Tenant(name=TENANT, max_storage_bytes=1024))
    died = Upload(batches.files, TENANT)
    await died.__aenter__()
    await died.reserve(0)
    await batches.files.use.free(TENANT, died._record.id)
    await died.reserve(1024)
    with pytest.raises(StorageQuotaReached, match=r"1,024 of 1,024 bytes .* this file has 1;"):
        await upload(batches, b"x")
    noted: Any
    (noted,) = await queue.redis.zrange(queue.keys.files_expiring, 0, -1)
    await queue.redis.zincrby(queue.keys.files_expiring, -UPLOAD_TTL_S - 1, noted)
    assert await batches.files.delete_expired() == 1
    await upload(batches, b"x")
    assert await batches.files.use.num_bytes(TENANT) == 1


@pytest.mark.usefixtures("worker")
async def test_a_batch_whose_results_fill_the_quota_fails_with_a_row_for_every_line(
    batches: Batches, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [chat(f"c{n}") for n in range(300)]
    batch = await create(batches, lines)
    tenants = Tenants(queue.redis)
    await tenants.create(Tenant(name=TENANT, max_storage_bytes=len(jsonl(lines)) + 1024))
    monkeypatch.setattr("gristmill.producer.batches.lifecycle.execution.LOOK_S", 0.0)
    monkeypatch.setattr(Execution, "_is_commit_due", lambda execution: bool(execution._tracker.rows.num_bytes))  # fmt: skip
    monkeypatch.setattr("gristmill.producer.batches.lifecycle.line_submitter.LINES_A_SUBMIT", 8)
    monkeypatch.setattr("gristmill.producer.batches.lifecycle.line_submitter.room", lambda **_: 8)
    ended = await run(batches, batch)
    assert ended.status == "failed"
    assert ended.errors
    assert ended.errors.data[0].code == "storage_quota_reached"
    assert "gristmill tenant change acme --max-storage-bytes" in ended.errors.data[0].message
    output = await rows_of(batches, ended.output_file_id)
    errors = await rows_of(batches, ended.error_file_id)
    assert 0 < len(output) < 100
    assert len(output) + len(errors) == ended.request_counts.total == 300
    assert ended.request_counts.failed == len(errors)
    assert {row["error"]["code"] for row in errors} == {"storage_quota_reached"}
    spec = BatchSpec(input_file_id=ended.input_file_id, endpoint=ended.endpoint)
    with pytest.raises(StorageQuotaReached):
        await batches.create(TENANT, spec)
    with pytest.raises(StorageQuotaReached):
        await batches.retry_failed(TENANT, ended.id)
    await tenants.change(Tenant(name=TENANT))
    again = await batches.retry_failed(TENANT, ended.id)
    assert again.status == "validating"
