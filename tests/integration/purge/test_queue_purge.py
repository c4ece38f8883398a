"""A whole queue goes: every key, and the objects of its batches; another queue in the same storage stays."""

from pathlib import Path
from typing import Any

import pytest
from batches import open_batches
from purges import fill, found_in_objects, marker_of
from queues import end_lease, open_worker

from gristmill.producer.batches.batch_service import Batches
from gristmill.producer.batches.lifecycle.leased_batch import LeasedBatch
from gristmill.producer.noted_queues import note_queue, noted_queues
from gristmill.producer.purge import purge_queue
from gristmill.producer.purge_checks import check_unheld
from gristmill.shared.errors import GristmillError
from gristmill.shared.queue import Queue


async def test_every_key_and_object_of_a_queue_goes(
    batches: Batches, queue: Queue, tmp_path: Path
) -> None:
    other = Queue(queue.redis, f"{queue.keys.queue}-2", queue.limits)
    await fill(batches, "acme", "acme-2")
    await fill(open_batches(other, tmp_path / "storage"), "others")
    before, objects = await _keys(other), found_in_objects(tmp_path, marker_of("others"))
    for each in (queue, other):
        await note_queue(queue.redis, each.keys.queue)
    report = await purge_queue(batches.store)
    assert not report.left
    assert await _keys(queue) == set()
    assert await noted_queues(queue.redis) == {other.keys.queue}
    assert found_in_objects(tmp_path, "marker-of-acme") == []
    assert (await _keys(other), found_in_objects(tmp_path, marker_of("others"))) == (
        before,
        objects,
    )
    assert report.removed["files"] == report.removed["batches"] == 4
    assert report.num_objects == len(objects)
    assert not (await purge_queue(batches.store)).removed
    await purge_queue(open_batches(other, tmp_path / "storage").store)


async def test_queue_with_leases_is_refused_and_the_message_says_what_to_stop(
    batches: Batches, queue: Queue
) -> None:
    await check_unheld(batches.store)
    await open_worker(queue, "w-1")
    with pytest.raises(
        GristmillError, match=r"1 workers hold a lease \(w-1\); stop the workers.*--force"
    ):
        await check_unheld(batches.store)
    await end_lease(queue, "w-1")
    await check_unheld(batches.store)
    await fill(batches, "acme")
    await end_lease(queue, "worker-acme")
    (record, *_) = await batches.store.records.open_batches("acme")
    leased = await LeasedBatch.take(batches.store, record.id)
    assert leased
    with pytest.raises(
        GristmillError, match=rf"stewards hold 1 batches \({record.id}\); stop the stewards"
    ):
        await check_unheld(batches.store)
    await leased.release()
    await check_unheld(batches.store)


class Killed(BaseException):
    """Stands for `kill -9` between two steps."""


@pytest.mark.parametrize("number", [1, 2, 3])
async def test_queue_purge_killed_half_way_is_finished_by_the_next(
    batches: Batches, queue: Queue, tmp_path: Path, number: int
) -> None:
    await fill(batches, "acme")
    num_told = 0

    def die_at(_: Any) -> None:
        nonlocal num_told
        num_told += 1
        if num_told == number:
            raise Killed

    with pytest.raises(Killed):
        await purge_queue(batches.store, tell=die_at)
    assert not (await purge_queue(batches.store)).left
    assert await _keys(queue) == set()
    assert found_in_objects(tmp_path, "marker-of-acme") == []


async def _keys(queue: Queue) -> set[bytes]:
    return {key async for key in queue.redis.scan_iter(match=queue.keys.pattern, count=1000)}
