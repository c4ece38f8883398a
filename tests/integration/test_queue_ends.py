"""Cancel and expiry need no worker, and nothing is left behind when all is over."""

import pytest
from queues import (
    ERROR,
    a_request,
    claim,
    claimed_by,
    contents,
    counters,
    die,
    fail,
    kinds_of_keys,
    open_worker,
    reap_all,
    some_requests,
    succeed,
)

from gristmill.shared.audit import audit
from gristmill.shared.operations import ClaimTerms, SuspectRoom
from gristmill.shared.queue import MOVED_A_CALL, Queue

LASTING = {
    "stats", "format", "pace", "usage", "times", "virtual_time", "debt", "tenant_output_shares", "batch", "batches_done",
}  # fmt: skip


async def pass_deadline(queue: Queue, *ids: str) -> None:
    await queue.redis.zadd(queue.keys.deadlines, dict.fromkeys(ids, 1))


async def wait_for_redis_time(queue: Queue, request_id: str) -> None:
    deadline_ms = await queue.redis.zscore(queue.keys.deadlines, request_id)
    while (await queue.stats()).now_ms < (deadline_ms or 0):
        pass


async def test_cancel_is_terminal_with_no_worker_alive(queue: Queue) -> None:
    await queue.submit([a_request("waits"), a_request("later", delay_s=60)])
    assert await queue.cancel(["waits", "later", "unknown"]) == ["queued", "queued", "unknown"]
    for result in await queue.results(["waits", "later"]):
        assert result is not None
        assert (result.status, result.attempt) == ("cancelled", 0)
        assert result.failure == "cancelled: cancelled by a client"
    assert await audit(queue) == []


async def test_cancel_of_many_has_a_code_for_each_in_their_order(queue: Queue) -> None:
    await queue.submit([a_request(f"r{i}") for i in range(0, 2 * MOVED_A_CALL + 10, 2)])
    codes = await queue.cancel([f"r{i}" for i in range(2 * MOVED_A_CALL + 10)])
    assert codes == ["queued", "unknown"] * (MOVED_A_CALL + 5)
    assert await queue.cancel([]) == []
    assert await audit(queue) == []


async def test_cancel_of_a_running_request_tells_its_worker_and_fences_it(queue: Queue) -> None:
    items = await claimed_by(queue, "w", 2)
    assert await queue.cancel([items[0].id]) == ["running"]
    (result,) = await queue.results([items[0].id])
    assert result is not None
    assert result.attempt == 1, "it ended the first attempt"
    beat = await queue.beat("w")
    assert (beat.num_in_flight, beat.abort) == (1, [items[0].id])
    assert (await queue.beat("w")).abort == []
    assert await succeed(queue, "w", items) == [0, 1]
    assert await audit(queue) == []


async def test_cancel_of_what_a_dead_worker_held_is_terminal(queue: Queue) -> None:
    (item,) = await claimed_by(queue, "w")
    await queue.cancel([item.id])
    await die(queue, "w")
    assert await claim(queue, await open_worker(queue)) == []
    assert (await counters(queue))["cancelled"] == 1


async def test_expire_ends_requests_wherever_they_are(queue: Queue) -> None:
    (running,) = await claimed_by(queue, "w", deadline_s=3600)
    await queue.submit([a_request("waits", deadline_s=3600)])
    await queue.submit([a_request("later", deadline_s=3600, delay_s=60)])
    await pass_deadline(queue, running.id, "waits", "later")
    assert [await queue.expire() for _ in range(2)] == [3, 0]
    results = await queue.results([running.id, "waits", "later"])
    assert [(r.status, r.attempt) for r in results if r] == [
        ("expired", 1), ("expired", 0), ("expired", 0),
    ]  # fmt: skip
    assert (await queue.beat("w")).abort == [running.id]
    assert await fail(queue, "w", [running]) == [0]
    assert await audit(queue) == []


async def test_claim_ends_what_is_overdue_instead_of_running_it(queue: Queue) -> None:
    await queue.submit([a_request("short", deadline_s=0.001), a_request("long", deadline_s=3600)])
    await wait_for_redis_time(queue, "short")
    assert [item.id for item in await claim(queue, await open_worker(queue))] == ["long"]
    assert await queue.status(["short"]) == [("done", "")]
    assert (await counters(queue))["expired"] == 1


async def test_deadline_below_a_millisecond_is_still_a_deadline(queue: Queue) -> None:
    await queue.submit([a_request("tiny", deadline_s=0.0001)])
    await wait_for_redis_time(queue, "tiny")
    assert await queue.expire() == 1


async def test_finished_request_does_not_expire(queue: Queue) -> None:
    items = await claimed_by(queue, "w", deadline_s=3600)
    await succeed(queue, "w", items)
    assert await queue.redis.zcard(queue.keys.deadlines) == 0
    assert await queue.expire() == 0


async def test_thousands_past_their_deadline_all_get_their_record_in_bounded_steps(
    queue: Queue,
) -> None:
    requests = some_requests(2000, deadline_s=0.001)
    for start in range(0, 2000, 500):
        await queue.submit(requests[start : start + 500])
    await wait_for_redis_time(queue, requests[-1].id)
    steps = []
    while expired := await queue.expire():
        steps.append(expired)
    assert (sum(steps), max(steps)) == (2000, MOVED_A_CALL)
    assert (await counters(queue))["expired"] == 2000
    assert await audit(queue) == []


async def test_claims_clear_what_is_overdue_in_bounded_steps(queue: Queue) -> None:
    requests = some_requests(500, deadline_s=0.001)
    await queue.submit(requests)
    await wait_for_redis_time(queue, requests[-1].id)
    worker = await open_worker(queue)
    await claim(queue, worker)
    assert (await counters(queue))["expired"] == 256
    await claim(queue, worker)
    assert (await counters(queue))["expired"] == 500


@pytest.mark.parametrize("num_lives", [1, 3])
async def test_no_key_outlives_what_it_was_for(queue: Queue, num_lives: int) -> None:
    """All kinds of ends; then results and dead letters go, as their TTLs would have it."""
    for _ in range(num_lives):
        await _live_through_everything(queue)
    assert await audit(queue) == []
    prefix = queue.keys.prefix
    for key in await contents(queue):
        if key.startswith((f"{prefix}result:", f"{prefix}finished:")):
            assert await queue.redis.pttl(key) > 0, f"{key} has no TTL"
            await queue.redis.delete(key)
    await queue.dead_letters.purge([letter.id for letter in await queue.dead_letters.newest()])
    assert await kinds_of_keys(queue) <= LASTING
    assert await queue.redis.pttl(queue.keys.batch("b")) > 0
    assert await counters(queue) == {
        name: number for name, number in (await counters(queue)).items()
        if name not in {"queued", "in_flight", "bytes"}
    }  # fmt: skip


async def _live_through_everything(queue: Queue) -> None:
    fields = {"batch": "b", "reply": "me", "deadline_s": 3600, "max_attempts": 2}
    items = await claimed_by(queue, "w1", 12, **fields)
    await succeed(queue, "w1", items[:2])
    await fail(queue, "w1", items[2:4])
    await queue.cancel([items[4].id])
    await pass_deadline(queue, items[5].id)
    await queue.expire()
    await queue.nack("w1", items[6], 3_600_000, ERROR)
    await queue.cancel([items[6].id])
    await queue.release("w1", items[7:9])
    await queue.redis.rpush(queue.keys.inbox, b"garbage")
    ((token, _),) = (await queue.claim("w1", "inbox", 1)).inbox
    await die(queue, "w1")
    worker = await open_worker(queue, "w2")
    ((token, _),) = (
        await queue.claim(worker, "again", 1, ClaimTerms(suspects=SuspectRoom(0)))
    ).inbox
    await queue.admit_garbage(worker, token, f"inbox-{token}", {})
    await die(queue, worker)
    worker = await open_worker(queue, "w3")
    while held := await claim(queue, worker, max_suspects=64):
        await succeed(queue, worker, held[1:])
        for item in held[:1]:
            await queue.nack(worker, item, 0, ERROR)
    await claim(queue, worker)
    assert await queue.deregister(worker)
    assert await reap_all(queue) == 0
