"""Stewards of batches of several queues die, or are away: each line still runs once and has one row."""

import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from batches import TENANT, all_rows, files_in
from families import HOME_MODEL, OTHER_MODEL, Family, ids, mixed, open_family
from mortals import connected_again, dies, last_call

from gristmill.producer.batches.child_batches import child_id, children_of
from gristmill.producer.batches.lifecycle import advance, following
from gristmill.producer.batches.objects import BatchRecord
from gristmill.shared.audit import audit
from gristmill.shared.errors import NotFound

NUM_SEEDS = int(os.environ.get("GRISTMILL_BATCH_SEEDS", "1"))


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
@pytest.mark.parametrize("ending", ["completed", "cancelled"])
async def test_stewards_die_at_random_calls(
    family_url: str, family: Family, tmp_path: Path, seed: int, ending: str
) -> None:
    chance = random.Random(seed)
    lines: list[Any] = mixed(40)
    lines[7] = b'{"custom_id": "c7", "body": 5}'
    batch = await family.create(lines, mode="lenient")
    num_deaths = 0
    cancel_at = chance.randrange(10, 40) if ending == "cancelled" else None
    async with (
        family.worker(family.first, HOME_MODEL).running() as one,
        family.worker(family.second, OTHER_MODEL).running() as two,
    ):
        for turn in range(2_000):
            state = await family.parent(batch)
            if turn == cancel_at and state.record.status in {"validating", "in_progress"}:
                await family.home.cancel(TENANT, batch.id)
            if state.phase is None:
                break
            if state.phase == "announce":
                await family.home.store.due.announced(batch.id)
            names = [batch.id, *(child_id(batch.id, name) for name in state.record.children)]
            for name in names:
                calls = last_call(chance, num_deaths, 40)
                num_deaths += await _life(family_url, family, tmp_path, name, calls, chance)
    ended = await family.seen(batch)
    assert num_deaths > 0
    assert max(Counter(one.answered + two.answered).values()) == 1, "a line ran twice"
    await _check_rows(family, ended, ending, tmp_path)


async def _check_rows(family: Family, ended: BatchRecord, ending: str, folder: Path) -> None:
    counts = ended.request_counts
    if ended.status == "cancelled" and counts.total == 0:
        return  # before its validation
    assert ended.status in {"completed", ending}
    assert counts.finished == counts.total == 40
    rows = await all_rows(family.home, ended)
    assert sorted(ids(rows)) == sorted(f"c{i}" for i in range(40))
    assert counts.completed == sum(row["error"] is None and row["response"]["status_code"] == 200 for row in rows)  # fmt: skip
    left = [path for path in files_in(folder) if not path.startswith("files/")]
    assert len(left) == (ended.output_file_id is not None) + (ended.error_file_id is not None)
    for each in (family.first, family.second):
        assert await audit(each) == []


async def _life(
    url: str, family: Family, folder: Path, batch: str, calls: int, chance: random.Random
) -> bool:
    """Be one steward of a batch for a slice; return True if it was killed."""
    async with connected_again(url, family.first) as queue:
        home = open_family(queue, folder).home.store
        store = home.of_queue(batch.rpartition("@")[2]) if "@" in batch else home
        try:
            return await dies(
                family.first, store, batch, calls, chance, lambda _: chance.random() < 0.7
            )
        except NotFound:  # the steward that was to create this child has died
            return False


async def test_one_dies_at_each_call_of_the_split_and_the_join(
    family_url: str, family: Family, tmp_path: Path
) -> None:
    """Die at the first call of a step, then at the second, ... until the step ends without a death."""
    chance = random.Random(0)
    num_deaths: Counter[str] = Counter()
    async with (
        family.worker(family.first, HOME_MODEL).running() as one,
        family.worker(family.second, OTHER_MODEL).running() as two,
    ):
        batch = await family.create([*mixed(4), b"broken"], mode="lenient")
        while phase := (await family.parent(batch)).phase:
            calls = num_deaths[phase] + 1
            if await _dies(family_url, family, tmp_path, batch.id, calls, chance):
                num_deaths[phase] += 1
                continue
            if phase == "announce":
                await family.home.store.due.announced(batch.id)
            for child in await children_of(family.home.store, (await family.parent(batch)).record):
                if child.state and child.state.phase:
                    await advance(child.store, child.id, lambda _: True)
    ended = await family.seen(batch)
    assert (ended.status, ended.request_counts.completed, ended.request_counts.failed) == (
        "completed",
        4,
        1,
    )
    assert [int(row["id"].rpartition("-")[2]) for row in await family.rows(ended)] == [
        1,
        2,
        3,
        4,
        5,
    ]
    assert max(Counter(one.answered + two.answered).values()) == 1
    assert num_deaths["validate"] > 5
    assert num_deaths["follow"] > 10
    assert num_deaths["finalize"] > 10
    assert {path.split("/")[0] for path in files_in(tmp_path)} == {"files", "results"}


async def _dies(
    url: str, family: Family, folder: Path, batch: str, calls: int, chance: random.Random
) -> bool:
    async with connected_again(url, family.first) as queue:
        store = open_family(queue, folder).home.store
        return await dies(family.first, store, batch, calls, chance)


async def test_a_child_that_a_failover_lost_is_created_again(family: Family) -> None:
    async with (
        family.worker(family.first, HOME_MODEL).running(),
        family.worker(family.second, OTHER_MODEL).running(),
    ):
        batch = await family.create(mixed(4))
        while (await family.parent(batch)).phase != "follow":
            await family.turn(batch)
        for child in await children_of(family.home.store, (await family.parent(batch)).record):
            await child.store.records.forget(TENANT, child.id)
        ended = await family.run(batch)
    assert (ended.status, ended.request_counts.completed) == ("completed", 4)


async def test_a_steward_that_was_away_creates_no_child_again(family: Family) -> None:
    async with (
        family.worker(family.first, HOME_MODEL).running(),
        family.worker(family.second, OTHER_MODEL).running(),
    ):
        batch = await family.create(mixed(4))
        while not (planned := (await family.parent(batch)).checkpoint.planned):
            await advance(family.home.store, batch.id, lambda _: True)
        parent = (await family.parent(batch)).record
        await family.run(batch)
    for child in await children_of(family.home.store, (await family.parent(batch)).record):
        assert child.state
        late = following._child_record(
            parent, child.queue, planned[child.queue], family.first.keys.queue
        )
        await child.store.records.create_child(late, child.state.checkpoint)
        assert not await child.store.due.batches("steps")
        assert await child.store.queue.redis.ttl(child.store.queue.keys.batch_record(child.id)) > 0
