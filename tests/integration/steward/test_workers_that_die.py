"""The only worker dies during a batch: finished lines stay, and the next worker runs the others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from stewards import TRUE, Place, steward_process
from workers import STUB, WorkerProcess, worker_process

from gristmill.producer.batches.objects import BatchRecord, RequestCounts

SLOW = {"STUB_TOKEN_DELAY_S": "0.05", "MAX_IN_FLIGHT": "16", "GRISTMILL_LEASE_S": "1"}


@asynccontextmanager
async def slow_worker(place: Place, name: str) -> AsyncIterator[WorkerProcess]:
    queue = place.batches.store.queue
    async with worker_process(STUB, place.url, queue, place.folder / name, **SLOW) as worker:
        yield worker


async def _watch(place: Place, batch: str, seen: list[RequestCounts]) -> BatchRecord:
    """Look at the counts every 50 ms until the batch has ended."""
    while not (record := await place.batches.batch("default", batch)).is_final:
        seen.append(record.request_counts)
        await asyncio.sleep(0.05)
    seen.append(record.request_counts)
    return record


async def _finished(place: Place, batch: str, number: int) -> None:
    while (await place.batches.batch("default", batch)).request_counts.finished < number:
        await asyncio.sleep(0.05)


async def test_the_next_worker_runs_only_what_is_unfinished(place: Place) -> None:
    seen: list[RequestCounts] = []
    async with (
        steward_process(TRUE, place.url, place.queue, place.folder),
        steward_process(TRUE, place.url, place.queue, place.folder),
    ):
        batch = await place.create(200)
        watching = asyncio.create_task(_watch(place, batch, seen))
        async with slow_worker(place, "first") as first:
            await _finished(place, batch, 80)
            first.kill()
        async with slow_worker(place, "second"):
            record = await watching
    assert (record.status, record.request_counts.completed) == ("completed", 200)
    finished = [counts.finished for counts in seen]
    assert finished == sorted(finished), "counts only grow"
    assert len(set(finished)) > 3, "there was something to watch"
    assert (await place.batches.store.queue.stats()).counters["succeeded"] == 200


async def test_a_cancel_ends_a_batch_whose_worker_is_dead(place: Place) -> None:
    async with steward_process(TRUE, place.url, place.queue, place.folder):
        batch = await place.create(200)
        async with slow_worker(place, "only") as only:
            await _finished(place, batch, 40)
            only.kill()
        assert (await place.batches.cancel("default", batch)).status == "cancelling"
        record = await _watch(place, batch, [])
    counts = record.request_counts
    assert (record.status, counts.completed + counts.cancelled) == ("cancelled", 200)
    assert counts.completed >= 40
