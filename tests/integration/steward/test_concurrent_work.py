"""Work beside RQ's single place: its places, each tenant's own, and its end."""

import asyncio
from collections import defaultdict

import pytest
from stewards import Place

from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.steward.concurrent_work import ConcurrentWork


class Pieces:
    """Pieces of work that end when the test says so; afterwards their batch is no longer due."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._owners: dict[str, str] = {}
        self.ends: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.running: list[str] = []
        self.cancelled: list[str] = []

    async def make(self, *tenants: str) -> list[str]:
        made = [await self._place.create(tenant=tenant) for tenant in tenants]
        self._owners |= dict(zip(made, tenants, strict=True))
        return made

    def owners(self, batches: list[str]) -> str:
        return "".join(sorted(self._owners[batch] for batch in batches))

    async def step(self, store: BatchStore, batch: str) -> None:
        self.running.append(batch)
        try:
            await self.ends[batch].wait()
        except asyncio.CancelledError:
            self.cancelled.append(batch)
            raise
        finally:
            self.running.remove(batch)
        due_key = store.queue.keys.batches_due("steps", self._owners[batch])
        await store.queue.redis.zrem(due_key, batch)

    async def finish(self, work: ConcurrentWork, batch: str) -> None:
        task = work._tasks[batch]
        self.ends[batch].set()
        await task

    async def until(self, work: ConcurrentWork, owners: str) -> None:
        """Let the work look once; then pieces of these tenants run."""
        await work.start_due(self._place.batches.store)
        await asyncio.sleep(0)
        assert self.owners(self.running) == owners


def some_work(pieces: Pieces, max_running: int, max_a_tenant: int) -> ConcurrentWork:
    return ConcurrentWork(
        "steps", pieces.step, max_running=max_running, max_a_tenant=max_a_tenant, timeout_s=60
    )


async def test_each_tenant_has_its_places_and_none_waits_for_anothers(place: Place) -> None:
    pieces = Pieces(place)
    await pieces.make("a", "a", "a", "b")
    work = some_work(pieces, max_running=8, max_a_tenant=2)
    await pieces.until(work, "aab")
    (of_b,) = [batch for batch in pieces.running if pieces.owners([batch]) == "b"]
    await pieces.finish(work, of_b)
    await pieces.until(work, "aa")
    await pieces.finish(work, pieces.running[0])
    await pieces.until(work, "aa")
    await work.stop()
    assert pieces.owners(pieces.cancelled) == "aa"
    assert not work._num_of


async def test_no_more_run_than_there_are_places_and_none_twice(place: Place) -> None:
    pieces = Pieces(place)
    await pieces.make("a", "b", "b", "b", "c")
    work = some_work(pieces, max_running=2, max_a_tenant=2)
    await pieces.until(work, "ab")
    await pieces.until(work, "ab")
    await pieces.finish(work, pieces.running[1])
    await pieces.until(work, "ac")
    await work.stop()


@pytest.mark.parametrize("timeout_s", [0.01, 60.0])
async def test_a_piece_that_fails_or_takes_too_long_frees_its_place(
    place: Place, timeout_s: float
) -> None:
    batch = await place.create(tenant="a")
    store = place.batches.store

    async def step(store: BatchStore, batch: str) -> None:
        if timeout_s == 60:
            raise ValueError("broken")
        await asyncio.Event().wait()

    work = ConcurrentWork("steps", step, max_running=1, max_a_tenant=1, timeout_s=timeout_s)
    await work.start_due(store)
    await work._tasks[batch]
    assert not work._num_of
    key = store.queue.keys.steward_time("steps")
    assert (await store.queue.redis.zscore(key, "a") or 0) < 1000, "it pays only for its time"
    await work.start_due(store)
    assert list(work._tasks) == [batch]
    await work.stop()
