"""A batch of two queues loses one of them to a purge, also to one that is under way or has died."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from batches import TENANT, chat, files_in
from families import HOME_MODEL, OTHER_MODEL, Family, open_family
from queues import fresh_queue

from gristmill.local.redis_server import running_server
from gristmill.producer.batches.child_batches import child_id
from gristmill.producer.batches.file_purge import FilePurge
from gristmill.producer.batches.lifecycle.leased_batch import LeasedBatch
from gristmill.producer.batches.objects import BatchRecord
from gristmill.producer.batches.parts import parts_folder
from gristmill.producer.purge import Purge, PurgeReport, purge_queue
from gristmill.producer.purge_checks import check_unheld
from gristmill.shared.errors import GristmillError
from gristmill.shared.queue import Queue


@pytest.fixture(scope="module")
def server_url() -> Iterator[str]:
    with running_server() as url:
        yield url


@pytest.fixture
async def queue(server_url: str) -> AsyncIterator[Queue]:
    async with fresh_queue(server_url) as queue:
        yield queue


@pytest.fixture
def family(queue: Queue, tmp_path: Path) -> Family:
    return open_family(queue, tmp_path)


async def _until(family: Family, status: str) -> BatchRecord:
    """Return a batch of ten lines of which the second queue has the odd ones."""
    models = (HOME_MODEL, OTHER_MODEL)
    async with (
        family.worker(family.first, HOME_MODEL).running(),
        family.worker(family.second, OTHER_MODEL).running(),
    ):
        batch = await family.create([chat(f"c{i}", model=models[i % 2]) for i in range(10)])
        while (await family.parent(batch)).record.status != status:
            await family.turn(batch)
        if status == "in_progress":
            await family.turn(batch)
    return batch


async def _check_lost(family: Family, batch: BatchRecord) -> None:
    ended = await family.run(batch)
    assert ended.errors
    assert (ended.status, ended.errors.data[0].code) == ("failed", "queue_purged")
    rows = await family.rows(ended)
    assert [row["custom_id"] for row in rows] == [f"c{i}" for i in range(0, 10, 2)]
    assert (ended.request_counts.total, ended.request_counts.finished) == (10, 5)


async def test_a_purge_that_died_after_the_parts_of_a_child(family: Family) -> None:
    batch = await _until(family, "finalizing")
    child = child_id(batch.id, family.second.keys.queue)
    records = family.home.store.of_queue(family.second.keys.queue).records
    await records.fence(child)
    await records.forget_parts(TENANT, child)
    await _check_lost(family, batch)


async def test_a_purge_that_is_between_the_parts_and_their_objects(family: Family) -> None:
    """The first look finds the list of the parts, but not the objects. The next look finds neither."""
    batch = await _until(family, "finalizing")
    child = child_id(batch.id, family.second.keys.queue)
    store = family.home.store.of_queue(family.second.keys.queue)
    store.storage.delete_folder(parts_folder(child))
    with pytest.raises(FileNotFoundError):
        await family.turn(batch)
    await store.records.forget_parts(TENANT, child)
    await _check_lost(family, batch)


async def test_a_purge_of_the_home_queue_takes_the_children_from_their_stewards(
    family: Family, tmp_path: Path
) -> None:
    batch = await _until(family, "in_progress")
    store = family.home.store.of_queue(family.second.keys.queue)  # its name has a dot
    child = child_id(batch.id, family.second.keys.queue)
    leased = await LeasedBatch.take(store, child)
    assert leased
    with pytest.raises(GristmillError, match=rf"stewards hold 1 batches \({child}\)"):
        await check_unheld(family.home.store)
    report = await purge_queue(family.home.store, settle_s=0)
    assert not report.left
    assert not await store.records.is_leased(child)
    assert files_in(tmp_path) == []


async def test_objects_that_stewards_write_late_go_with_their_batch_alone(
    family: Family, tmp_path: Path
) -> None:
    batch = await _until(family, "in_progress")
    storage, second = family.home.store.storage, family.second.keys.queue
    late = storage.new_path(parts_folder(child_id(batch.id, second)), "output")
    other = storage.new_path(parts_folder(child_id(batch.id, f"{second}.c")), "output")
    files = FilePurge(family.home.store, None)
    await files.stop_batches()
    for path in (late, other):
        storage.write(path, b"{}\n")
    report = await Purge(family.home.store, files, [], lambda _: None, PurgeReport()).run()
    assert report.removed["objects without a record"] >= 1
    assert other in files_in(tmp_path)
    assert late not in files_in(tmp_path)
