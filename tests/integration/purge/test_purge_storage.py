"""A purge with a storage that is not the one of the files deletes nothing."""

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from batches import open_batches
from purges import fill, found_in_keys, found_in_objects, marker_of

from gristmill.producer.batches.batch_service import Batches
from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.purge import PurgeReport, purge_queue
from gristmill.producer.tenant_purge import purge_tenant
from gristmill.producer.tenants import Tenants
from gristmill.shared.errors import SettingsError
from gristmill.shared.queue import Queue

MARKER = marker_of("acme")


async def of_tenant(store: BatchStore, **options: Any) -> PurgeReport:
    return await purge_tenant(Tenants(store.queue.redis), [store], "acme", settle_s=0, **options)


async def of_queue(store: BatchStore, **options: Any) -> PurgeReport:
    return await purge_queue(store, **options)


pytestmark = pytest.mark.parametrize("any_redis_url", ["valkey"], indirect=True)
both = pytest.mark.parametrize("purge", [of_tenant, of_queue])
PurgeCall = Callable[..., Awaitable[PurgeReport]]


async def _state(queue: Queue, folder: Path) -> object:
    keys = {key async for key in queue.redis.scan_iter(match=queue.keys.pattern, count=1000)}
    batches = await queue.redis.hexists(
        (next(key for key in keys if b":batch_record:" in key)).decode(), "cancelling_at"
    )
    tenant = await Tenants(queue.redis).traces("acme")
    return keys, batches, tenant, found_in_objects(folder, MARKER)


@both
@pytest.mark.parametrize(
    ("kind", "reason"), [("absent", "absent on this machine"), ("empty", "lacks")]
)
async def test_wrong_storage_deletes_nothing(
    batches: Batches, queue: Queue, tmp_path: Path, purge: PurgeCall, kind: str, reason: str
) -> None:
    await fill(batches, "acme")
    before = await _state(queue, tmp_path)
    if kind == "empty":
        (tmp_path / kind).mkdir()
    with pytest.raises(SettingsError, match=rf"{reason}.*GRISTMILL_STORAGE_URL"):
        await purge(open_batches(queue, tmp_path / kind).store)
    assert await _state(queue, tmp_path) == before
    assert not (tmp_path / "absent").exists()
    assert not (await purge(batches.store)).left
    assert found_in_objects(tmp_path, MARKER) == []


@both
async def test_lost_part_of_a_running_batch_is_missed(
    batches: Batches, queue: Queue, tmp_path: Path, purge: PurgeCall
) -> None:
    await fill(batches, "acme")
    (batch, *_) = await batches.store.records.open_batches("acme")
    part = b'{"kind":"output","path":"batches/%s/output.9","size":3}' % batch.id.encode()
    await queue.redis.rpush(queue.keys.batch_parts(batch.id), part)
    with pytest.raises(SettingsError, match=rf"batch {batch.id}.*output\.9.*--lost-objects"):
        await purge(batches.store)
    assert not (await purge(batches.store, may_lack_objects=True)).left
    assert await found_in_keys(queue, MARKER) == []


@both
async def test_lost_file_can_be_given_up(
    batches: Batches, queue: Queue, tmp_path: Path, purge: PurgeCall
) -> None:
    await fill(batches, "acme")
    shutil.rmtree(tmp_path / "storage" / "files")
    with pytest.raises(SettingsError, match=r"file file-.*--lost-objects"):
        await purge(batches.store)
    assert not (await purge(batches.store, may_lack_objects=True)).left
    assert await found_in_keys(queue, MARKER) == []


@both
async def test_queue_without_files_needs_no_storage(
    queue: Queue, tmp_path: Path, purge: PurgeCall
) -> None:
    await Tenants(queue.redis).revoke_keys("acme")
    await queue.tenants.set_weights({"acme": 2})
    report = await purge(open_batches(queue, tmp_path / "absent").store)
    assert (report.num_objects, report.left) == (None, {})
    assert not (tmp_path / "absent").exists()


async def test_file_leaves_the_list_before_its_object_goes(
    batches: Batches, queue: Queue, tmp_path: Path
) -> None:
    """A purge that dies in between leaves a record without an object, and the next one accepts that."""
    await fill(batches, "acme")
    (file, *_) = (await batches.files.page("acme")).data
    record = await batches.files.get("acme", file.id)
    await queue.redis.zrem(queue.keys.files("acme"), file.id)
    batches.store.storage.delete(record.path)
    assert not (await of_tenant(batches.store)).left
