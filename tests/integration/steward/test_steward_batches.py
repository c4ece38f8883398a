"""Stewards that run real batches from file to results, also if a steward dies or stops."""

import asyncio
import time
from collections import Counter

import orjson
import pytest
from stewards import TRUE, Place, steward_process
from workers import STUB as STUB_WORKER
from workers import worker_process

from gristmill.producer.batches.lifecycle import LEASE_S
from gristmill.producer.batches.objects import BatchRecord


async def _until_final(place: Place, batch: str, within_s: float) -> BatchRecord:
    deadline = time.monotonic() + within_s
    while not (record := await place.batches.batch("default", batch)).is_final:
        assert time.monotonic() < deadline, record
        await asyncio.sleep(0.05)
    return record


async def _rows(place: Place, record: BatchRecord) -> Counter[str]:
    assert record.output_file_id is not None
    file = await place.batches.files.get("default", record.output_file_id)
    lines = b"".join(place.batches.files.content(file)).splitlines()
    return Counter(orjson.loads(line)["custom_id"] for line in lines)


async def test_a_batch_runs_from_its_file_to_its_results(place: Place) -> None:
    async with (
        worker_process(STUB_WORKER, place.url, place.batches.store.queue, place.folder / "worker"),
        steward_process(TRUE, place.url, place.queue, place.folder) as steward,
    ):
        record = await _until_final(place, await place.create(200), 30)
        assert record.status == "completed"
        assert await _rows(place, record) == {f"row-{n}": 1 for n in range(200)}
        assert not steward.events("job.failed")


@pytest.mark.alone
@pytest.mark.timeout(120)
async def test_the_batch_of_a_killed_steward_goes_on_within_its_lease(place: Place) -> None:
    async with (
        worker_process(
            STUB_WORKER, place.url, place.batches.store.queue, place.folder / "worker",
            STUB_TOKEN_DELAY_S="0.3", MAX_IN_FLIGHT="16",
        ),
        steward_process(TRUE, place.url, place.queue, place.folder) as one,
    ):  # fmt: skip
        batch = await place.create(400)
        while (await place.batches.batch("default", batch)).request_counts.finished < 20:
            await asyncio.sleep(0.05)
        one.kill()
        killed_s = time.monotonic()
        finished = (await place.batches.batch("default", batch)).request_counts.finished
        assert finished < 400
        async with steward_process(TRUE, place.url, place.queue, place.folder) as two:
            await two.until("job.started", batch=batch)
            assert time.monotonic() - killed_s < LEASE_S + 3
            record = await _until_final(place, batch, 60)
            assert await _rows(place, record) == {f"row-{n}": 1 for n in range(400)}


@pytest.mark.alone
async def test_a_stopped_steward_leaves_its_batch_to_the_next_at_once(place: Place) -> None:
    async with (
        worker_process(
            STUB_WORKER, place.url, place.batches.store.queue, place.folder / "worker",
            STUB_TOKEN_DELAY_S="0.1", MAX_IN_FLIGHT="32",
        ),
        steward_process(TRUE, place.url, place.queue, place.folder) as one,
    ):  # fmt: skip
        batch = await place.create(300)
        while (await place.batches.batch("default", batch)).request_counts.finished < 20:
            await asyncio.sleep(0.05)
        code, seconds = await one.terminate()
        assert code == 0
        assert seconds < 8
        async with steward_process(TRUE, place.url, place.queue, place.folder) as two:
            await two.until("job.started", batch=batch)
            record = await _until_final(place, batch, 30)
            assert await _rows(place, record) == {f"row-{n}": 1 for n in range(300)}
