"""A batch of two queues, whose steward processes are killed again and again."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import orjson
import pytest
from batches import all_rows
from stewards import TRUE, Place, StewardProcess, start_steward
from workers import STUB, worker_process

from gristmill.producer.batches.batch_service import Batches
from gristmill.producer.batches.batch_spec import BatchSpec
from gristmill.producer.batches.child_batches import child_id
from gristmill.shared.audit import audit

NUM_LINES, NUM_KILLS = 400, 8
SLOW = {"STUB_TOKEN_DELAY_S": "0.05", "MAX_IN_FLIGHT": "16"}


@asynccontextmanager
async def workers(place: Place, second: str) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for number, name in enumerate((place.queue, second)):
            queue = place.batches.store.of_queue(name).queue
            log = place.folder / f"worker-{number}"
            await stack.enter_async_context(worker_process(STUB, place.url, queue, log, **SLOW))
        yield


@pytest.mark.long
async def test_killed_stewards_of_both_queues_leave_one_row_for_each_line(place: Place) -> None:
    chance = random.Random(1)
    second = f"{place.queue}-b"
    batches = Batches(place.batches.store, [place.queue, second], {"b": second, "a": place.queue})
    lines = [
        {
            "custom_id": f"row-{n}", "method": "POST", "url": "/v1/completions",
            "body": {"model": "ab"[n % 2], "prompt": f"Say {n}.", "max_tokens": 4},
        }
        for n in range(NUM_LINES)
    ]  # fmt: skip
    file = await place.upload(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    spec = BatchSpec(input_file_id=file, endpoint="/v1/completions")
    batch = (await batches.create("default", spec)).id
    stewards: dict[str, StewardProcess] = {}
    num_kills = 0
    async with workers(place, second):
        try:
            while not (record := await batches.batch("default", batch)).is_final:
                for name in (place.queue, second):
                    if name not in stewards:
                        stewards[name] = start_steward(TRUE, place.url, name, place.folder)
                await asyncio.sleep(chance.uniform(1, 4))
                if num_kills < NUM_KILLS:
                    name = chance.choice((place.queue, second))
                    stewards.pop(name).kill()
                    num_kills += 1
                    await _end_leases(batches, batch, place.queue, second)
        finally:
            for steward in stewards.values():
                steward.kill()
    assert num_kills > 2
    assert (record.status, record.request_counts.completed) == ("completed", NUM_LINES)
    rows = await all_rows(batches, record, "default")
    assert [row["custom_id"] for row in rows] == [f"row-{n}" for n in range(NUM_LINES)]
    for name in (place.queue, second):
        queue = place.batches.store.of_queue(name).queue
        assert await audit(queue) == []
        assert (await queue.stats()).counters["succeeded"] == NUM_LINES / 2, "a line ran twice"


async def _end_leases(batches: Batches, batch: str, home: str, second: str) -> None:
    """End the leases of the dead: the test need not wait for it."""
    for name, held in ((home, batch), (home, child_id(batch, home)), (second, child_id(batch, second))):  # fmt: skip
        queue = batches.store.of_queue(name).queue
        await queue.redis.unlink(queue.keys.batch_lease(held))
