"""Which batch a steward takes next: the tenants' turns, by the time that stewards gave them."""

from collections import Counter
from pathlib import Path

import pytest
from batches import CHAT, jsonl, open_batches

from gristmill.producer.batches.batch_service import Batches
from gristmill.producer.batches.batch_spec import BatchSpec
from gristmill.producer.batches.batch_state import WORK_OF
from gristmill.producer.batches.due_batches import MAX_CHARGED_S, DueBatch
from gristmill.producer.batches.lifecycle import LeasedBatch
from gristmill.producer.batches.objects import BatchRecord
from gristmill.producer.batches.upload import Upload
from gristmill.shared.audit import audit
from gristmill.shared.queue import Queue


@pytest.fixture
def batches(queue: Queue, tmp_path: Path) -> Batches:
    return open_batches(queue, tmp_path)


async def made(batches: Batches, tenant: str, number: int = 1) -> list[BatchRecord]:
    async with Upload(batches.files, tenant) as upload:
        upload.write(jsonl([{}]))
        file = await upload.finish("in.jsonl")
    spec = BatchSpec(input_file_id=file.id, endpoint=CHAT)
    return [await batches.create(tenant, spec) for _ in range(number)]


async def serve_next(batches: Batches, durations_s: dict[str, float]) -> DueBatch:
    """Take the next batch and say that its piece of work took so long; the batch stays due."""
    due = batches.store.due
    found = (await due.batches("steps"))[0]
    await due.begin(found)
    await due.wake("steps", found.tenant, found.batch)
    await due.end("steps", found.tenant, durations_s[found.tenant])
    return found


async def test_tenants_get_equal_time_whatever_their_pieces_and_batches(batches: Batches) -> None:
    durations_s = {"many": 3.0, "short": 0.1, "long": 9.0}
    await made(batches, "many", 20)
    await made(batches, "short")
    await made(batches, "long")
    used_s = dict.fromkeys(durations_s, 0.0)
    for _ in range(300):
        found = await serve_next(batches, durations_s)
        used_s[found.tenant] += durations_s[found.tenant]
        used = [used_s[name] for name in durations_s]
        assert max(used) - min(used) <= 12
    assert min(used_s.values()) > 20


async def test_a_tenants_own_batches_are_served_longest_due_first(
    batches: Batches, queue: Queue
) -> None:
    one, two, three = [record.id for record in await made(batches, "a", 3)]
    due_key = queue.keys.batches_due("steps", "a")
    await queue.redis.zadd(due_key, {one: 30, two: 10, three: 20})
    served = [(await serve_next(batches, {"a": 1.0})).batch for _ in range(3)]
    assert served == [two, three, one]


async def test_a_newcomer_is_next_and_then_shares(batches: Batches) -> None:
    durations_s = {"old": 300.0, "new": 1.0}
    await made(batches, "old", 5)
    for _ in range(10):
        await serve_next(batches, durations_s)
    await made(batches, "new")
    served = [(await serve_next(batches, durations_s)).tenant for _ in range(30)]
    assert served[0] == "new"
    # time that nobody else wanted costs the old one no turn
    assert served.index("old") <= MAX_CHARGED_S + 1


async def test_a_tenant_that_was_away_has_saved_nothing(batches: Batches) -> None:
    durations_s = {"a": 5.0, "b": 5.0, "idle": 5.0}
    (idle,) = await made(batches, "idle")
    await made(batches, "a")
    await made(batches, "b")
    due = batches.store.due
    await due.wake("steps", "idle", idle.id, 60)
    for _ in range(20):
        assert (await serve_next(batches, durations_s)).tenant != "idle"
    await due.wake("steps", "idle", idle.id)
    served = Counter([(await serve_next(batches, durations_s)).tenant for _ in range(9)])
    assert max(served.values()) - min(served.values()) <= 1


async def test_a_batch_that_a_steward_holds_is_not_due(batches: Batches) -> None:
    (held, free) = await made(batches, "a", 2)
    assert await LeasedBatch.take(batches.store, held.id)
    assert [found.batch for found in await batches.store.due.batches("steps")] == [free.id]


async def test_a_due_key_of_a_wrong_type_stops_only_its_tenant(
    batches: Batches, queue: Queue
) -> None:
    await made(batches, "a")
    (other,) = await made(batches, "b")
    due_key = queue.keys.batches_due("steps", "a")
    await queue.redis.delete(due_key)
    await queue.redis.rpush(due_key, "x")
    assert [found.batch for found in await batches.store.due.batches("steps")] == [other.id]
    assert [finding.subject for finding in await audit(queue)] == [due_key]


async def test_a_crowd_of_batches_hides_nobody(batches: Batches) -> None:
    await made(batches, "crowd", 150)
    await made(batches, "z")
    found = await batches.store.due.batches("steps", max_a_tenant=4, limit=100)
    assert Counter(each.tenant for each in found) == {"crowd": 4, "z": 1}


async def test_a_tenant_without_work_leaves_no_trace_once_others_catch_up(
    batches: Batches, queue: Queue
) -> None:
    (one,) = await made(batches, "one")
    await made(batches, "two")
    durations_s = {"one": 3.0, "two": 3.0}
    while (await serve_next(batches, durations_s)).tenant != "one":
        pass
    await queue.redis.unlink(queue.keys.batch_record(one.id))
    for _ in range(4):
        await serve_next(batches, durations_s)
    names = await queue.redis.zrange(queue.keys.steward_time("steps"), 0, -1)
    assert set(names) == {b"*", b"two"}


async def test_a_step_that_a_dead_steward_left_under_the_wrong_work_is_found(
    batches: Batches, queue: Queue
) -> None:
    (record,) = await made(batches, "a")
    await queue.redis.unlink(queue.keys.batches_due("steps", "a"))
    await batches.store.due.wake("webhooks", "a", record.id)
    assert await batches.store.due.batches("webhooks") == []
    found = [await batches.store.due.batches(work) for work in dict.fromkeys(WORK_OF.values())]
    assert [[each.batch for each in some] for some in found] == [[record.id], [], []]
