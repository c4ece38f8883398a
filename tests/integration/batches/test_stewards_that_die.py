"""Stewards die at random commands and writes: each line still runs once and has one row."""

import asyncio
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from batches import TENANT, all_rows, chat, create, files_in, open_batches, run
from command_line import SettlingWorker
from mortals import Killed, Mortal, connected_again, dies, last_call

from gristmill.producer.batches.batch_service import Batches
from gristmill.producer.batches.lifecycle import LeasedBatch
from gristmill.shared.errors import LeaseLost
from gristmill.shared.queue import Queue

NUM_LINES = 120
NUM_SEEDS = int(os.environ.get("GRISTMILL_BATCH_SEEDS", "3"))


def lines(chance: random.Random) -> list[Any]:
    made: list[Any] = [chat(f"c{i}") for i in range(NUM_LINES)]
    for number in chance.sample(range(NUM_LINES), 5):
        made[number] = b'{"custom_id": "c%d", "body": 5}' % number
    return made


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
@pytest.mark.parametrize("ending", ["completed", "cancelled"])
async def test_each_line_runs_once_and_has_one_row(
    any_redis_url: str, queue: Queue, tmp_path: Path, seed: int, ending: str
) -> None:
    chance = random.Random(seed)
    batches = open_batches(queue, tmp_path)
    batch = await create(
        batches, lines(chance), mode="lenient", order=chance.choice(["completion", "input"])
    )
    num_deaths = 0
    cancel_at = chance.randrange(3, 20) if ending == "cancelled" else None
    async with SettlingWorker(queue).running() as worker:
        for turn in range(2_000):
            if turn == cancel_at:
                await _cancel(batches, batch.id)
            calls = last_call(chance, num_deaths, 60)
            num_deaths += await _life(any_redis_url, queue, tmp_path, batch.id, calls, chance)
            phase = (await batches.store.records.state(batch.id)).phase
            if phase == "announce":
                await batches.store.records.mark_announced(batch.id)
            if phase is None:
                break
    ended = await batches.batch(TENANT, batch.id)
    assert num_deaths > 0, "the schedule killed nobody"
    assert max(Counter(worker.answered).values(), default=0) <= 1, "a line ran twice"
    counts = ended.request_counts
    if ended.status == "cancelled" and counts.total == 0:
        return  # before its validation
    assert ended.status in {"completed", ending}
    assert counts.finished == counts.total == NUM_LINES
    rows = await all_rows(batches, ended)
    assert sorted(row["custom_id"] for row in rows) == sorted(f"c{i}" for i in range(NUM_LINES))
    assert counts.completed == sum(row["response"] is not None and row["response"]["status_code"] == 200 for row in rows)  # fmt: skip
    if ended.status == "completed":
        assert (counts.completed, counts.failed) == (NUM_LINES - 5, 5)
    left = [path for path in files_in(tmp_path) if not path.startswith("files/")]
    assert len(left) == (ended.output_file_id is not None) + (ended.error_file_id is not None)


async def _cancel(batches: Batches, batch: str) -> None:
    if (await batches.store.records.state(batch)).record.status in {"validating", "in_progress"}:
        await batches.cancel(TENANT, batch)


async def _life(
    url: str, queue: Queue, folder: Path, batch: str, calls: int, chance: random.Random
) -> bool:
    """Be one steward for a slice; return True if it was killed."""
    async with connected_again(url, queue) as again:
        store = open_batches(again, folder, batch_window_requests=20).store
        return await dies(queue, store, batch, calls, chance, lambda _: chance.random() < 0.7)


async def test_one_dies_at_each_stage_of_finalizing(
    any_redis_url: str, queue: Queue, tmp_path: Path
) -> None:
    """Die at the first call, then at the second, ... until a steward ends without a death."""
    batches = open_batches(queue, tmp_path)
    num_deaths = 0
    while True:
        batch = await create(batches, [chat(f"c{i}") for i in range(40)])
        async with SettlingWorker(queue).running():
            await run(batches, batch, until=lambda record: record.status == "finalizing")
        async with connected_again(any_redis_url, queue) as again:
            steward = open_batches(again, tmp_path)
            Mortal(steward.store, num_deaths + 1, random.Random(num_deaths))
            try:
                await run(steward, batch)
                break
            except Killed:
                num_deaths += 1
        await queue.redis.unlink(queue.keys.batch_lease(batch.id))
        two = await asyncio.gather(run(batches, batch), run(batches, batch))
        assert [ended.request_counts.completed for ended in two] == [40, 40]
        rows = await all_rows(batches, two[0])
        assert sorted(row["custom_id"] for row in rows) == sorted(f"c{i}" for i in range(40))
    assert num_deaths > 15
    assert {path.split("/")[0] for path in files_in(tmp_path)} == {"files", "results"}


async def test_a_steward_that_was_away_is_told_though_another_made_a_commit_of_its_number(
    queue: Queue, tmp_path: Path
) -> None:
    batches = open_batches(queue, tmp_path)
    batch = await create(batches, [chat("a")])
    one = await LeasedBatch.take(batches.store, batch.id)
    await queue.redis.unlink(queue.keys.batch_lease(batch.id))
    two = await LeasedBatch.take(batches.store, batch.id)
    assert one
    assert two
    before = two.state
    await two.commit(before.record, before.checkpoint)
    with pytest.raises(LeaseLost):
        await one.commit(before.record, before.checkpoint)
    two.state = before  # as after a lost reply
    await two.commit(before.record, before.checkpoint)  # a repeat changes nothing
    assert (await batches.store.records.state(batch.id)).num_commits == 1
