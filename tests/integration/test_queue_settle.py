"""Settling: one terminal record each, and only a holder may fail, retry or hand back."""

import asyncio
from dataclasses import replace
from typing import Any

import orjson
import pytest
from queues import (
    ERROR,
    a_request,
    claim,
    claimed_by,
    counters,
    die,
    end_lease,
    fail,
    make_due,
    open_worker,
    reap_all,
    settlement,
    some_requests,
    succeed,
)
from redis.exceptions import ResponseError

from gristmill.shared.audit import audit
from gristmill.shared.operations import Settlement
from gristmill.shared.queue import Queue
from gristmill.shared.records import Claimed
from gristmill.shared.results import response_outcome


async def test_success_carries_the_engines_answer_untouched(queue: Queue) -> None:
    (item,) = await claimed_by(queue, "w", metadata={"row": 7})
    body = b'{"choices": [{"text":"\\u00e9"}],  "usage":null}'
    done = Settlement(item.id, item.delivery, "succeeded", response_outcome(1, "w", 200, body))
    assert await queue.ack("w", [done]) == [1]
    (result,) = await queue.results([item.id])
    assert result is not None
    assert result.is_success
    assert (result.status_code, result.attempt, result.worker) == (200, 1, "w")
    assert (result.metadata, result.body) == ({"row": 7}, orjson.loads(body))
    assert body in (await queue.redis.get(queue.keys.result(item.id)) or b"")
    assert result.enqueued_ms <= result.finished_ms


async def test_every_end_names_the_tenant_and_an_answer_what_made_it(queue: Queue) -> None:
    done, cancelled = await claimed_by(queue, "w", 2, tenant="team-a")
    await succeed(queue, "w", [done])
    await queue.cancel([cancelled.id])
    answered, other = await queue.results([done.id, cancelled.id])
    assert answered is not None
    assert other is not None
    assert answered.tenant == other.tenant == "team-a"
    assert (answered.made_by, other.made_by) == ({"model": "m"}, {})


async def test_failure_of_a_holder_is_a_record_with_its_reason(queue: Queue) -> None:
    (item,) = await claimed_by(queue, "w")
    answer = response_outcome(1, "w", 400, b'{"error":{"message":"too long"}}')
    await queue.ack("w", [Settlement(item.id, item.delivery, "failed", answer)])
    (result,) = await queue.results([item.id])
    assert result is not None
    assert (result.status, result.failure) == ("failed", "HTTP 400: too long")


async def test_result_lives_as_long_as_its_ttl(queue: Queue) -> None:
    (item,) = await claimed_by(queue, "w")
    await succeed(queue, "w", [item])
    left_ms = await queue.redis.pttl(queue.keys.result(item.id))
    assert queue.limits.result_ttl_ms - 60_000 < left_ms <= queue.limits.result_ttl_ms


async def test_second_terminal_record_changes_nothing(queue: Queue) -> None:
    (item,) = await claimed_by(queue, "w")
    assert await succeed(queue, "w", [item, item]) == [1, 0]
    before = await queue.redis.get(queue.keys.result(item.id))
    assert await fail(queue, "w", [item]) == [0]
    assert await queue.cancel([item.id]) == ["done"]
    assert await queue.redis.get(queue.keys.result(item.id)) == before
    assert (await counters(queue))["succeeded"] == 1
    assert "failed" not in await counters(queue)


async def test_late_success_is_accepted_once_and_the_holder_is_told_to_abort(queue: Queue) -> None:
    (old,) = await claimed_by(queue, "zombie")
    await die(queue, "zombie")
    (new,) = await claim(queue, await open_worker(queue, "w2"))
    assert new.delivery == old.delivery + 1
    assert await succeed(queue, "zombie", [old]) == [2]
    assert (await queue.beat("w2")).abort == [old.id]
    assert await succeed(queue, "w2", [new]) == [0]
    assert (await counters(queue))["succeeded"] == 1
    assert await audit(queue) == []


async def _purge_tenant(queue: Queue, item: Claimed) -> None:
    await queue.cancel([item.id])
    await queue.forget([item.id])


async def _end_and_forget(queue: Queue, item: Claimed) -> None:
    """Another worker ends it, and the result passes its TTL."""
    await die(queue, "w")
    await succeed(queue, "other", await claim(queue, await open_worker(queue, "other")))
    await queue.forget([item.id])


async def _purge_queue(queue: Queue, item: Claimed) -> None:
    async for key in queue.redis.scan_iter(match=queue.keys.pattern):
        await queue.redis.unlink(key)


ENDS = {"tenant purge": _purge_tenant, "TTL": _end_and_forget, "queue purge": _purge_queue}


@pytest.mark.parametrize("holder", ["w", "other", ""])
@pytest.mark.parametrize("end", ENDS)
async def test_a_worker_of_an_earlier_request_cannot_settle_the_next_of_its_id(
    queue: Queue, end: str, holder: str
) -> None:
    """Deliveries have the same numbers again. The next request may be another tenant's."""
    (old,) = await claimed_by(queue, "w", tenant="acme", body=b'{"prompt":"secret"}')
    await ENDS[end](queue, old)
    await queue.submit([a_request(old.id, tenant="globex")])
    new = await claim(queue, await open_worker(queue, holder)) if holder else []
    assert [item.delivery for item in new] == ([old.delivery] if holder else [])
    assert await succeed(queue, "w", [old]) == [0]
    assert await fail(queue, "w", [old]) == [0]
    assert await queue.nack("w", old, 0, ERROR) == "stale"
    assert await queue.release("w", [old]) == 0
    assert await queue.status([old.id]) == [("running", holder) if holder else ("queued", "")]
    if holder:
        assert await succeed(queue, holder, new) == [1]
    assert await audit(queue) == []


async def test_a_worker_of_a_dead_letter_cannot_settle_it_requeued_under_its_own_id(
    queue: Queue,
) -> None:
    (old,) = await claimed_by(queue, "w", max_attempts=1)
    await queue.nack("w", old, 0, ERROR)
    await queue.forget([old.id])
    assert await queue.dead_letters.requeue(old.id, old.id) == "accepted"
    assert await succeed(queue, "w", [old]) == [0]
    assert await queue.status([old.id]) == [("queued", "")]


async def test_a_fence_without_its_request_holds_but_is_never_late(queue: Queue) -> None:
    first, second = await claimed_by(queue, "w", 2)
    plain = [replace(settlement(item), fence="") for item in (first, second)]
    assert await queue.ack("w", plain[:1]) == [1]
    await queue.release("w", [second])
    assert await queue.ack("w", plain[1:]) == [0]
    assert await queue.status([second.id]) == [("queued", "")]


async def test_late_success_of_a_request_that_waits_again_is_accepted(queue: Queue) -> None:
    (old,) = await claimed_by(queue, "zombie")
    await die(queue, "zombie")
    assert await succeed(queue, "zombie", [old]) == [2]
    assert await claim(queue, await open_worker(queue)) == []
    assert await audit(queue) == []


async def test_late_success_of_a_delayed_retry_is_accepted(queue: Queue) -> None:
    (item,) = await claimed_by(queue, "w")
    await queue.nack("w", item, 3_600_000, ERROR)
    assert await succeed(queue, "w", [item]) == [2]
    assert await audit(queue) == []


@pytest.mark.parametrize("has_new_owner", [True, False])
async def test_zombie_can_neither_fail_nor_retry_nor_release(
    queue: Queue, has_new_owner: bool
) -> None:
    (old,) = await claimed_by(queue, "zombie")
    await die(queue, "zombie")
    if has_new_owner:
        await claim(queue, await open_worker(queue, "w2"))
    state = await queue.status([old.id])
    assert await fail(queue, "zombie", [old]) == [0]
    assert await queue.nack("zombie", old, 0, ERROR) == "stale"
    assert await queue.release("zombie", [old]) == 0
    assert await queue.crash("zombie", {}) == (0, [])
    assert await queue.status([old.id]) == state
    assert await audit(queue) == []


async def test_a_worker_is_fenced_from_its_own_earlier_delivery(queue: Queue) -> None:
    (first,) = await claimed_by(queue, "w")
    await queue.release("w", [first])
    (second,) = await claim(queue, "w")
    assert (second.delivery, second.attempt) == (2, 1)
    assert await fail(queue, "w", [first]) == [0]
    assert await queue.nack("w", first, 0, ERROR) == "stale"
    assert await queue.release("w", [first]) == 0
    assert await queue.status([first.id]) == [("running", "w")]
    assert await succeed(queue, "w", [second]) == [1]


async def test_reap_racing_ack_ends_in_one_success(queue: Queue) -> None:
    """A finished request can never turn failed, whichever comes first."""
    items = await claimed_by(queue, "w", 100)
    await end_lease(queue, "w")
    acks = [succeed(queue, "w", [item]) for item in items]
    codes, *_ = await asyncio.gather(asyncio.gather(*acks), *(queue.reap() for _ in range(5)))
    assert {code for (code,) in codes} <= {1, 2}
    assert await fail(queue, "w", items) == [0] * 100
    assert (await counters(queue))["succeeded"] == 100
    assert await audit(queue) == []


async def test_nack_retries_until_attempts_are_used_up(queue: Queue) -> None:
    await queue.submit([a_request("x", max_attempts=3)])
    worker = await open_worker(queue)
    for attempt in (1, 2, 3):
        (item,) = await claim(queue, worker)
        assert item.attempt == attempt
        expected = "retried" if attempt < 3 else "dead_lettered"
        assert await queue.nack(worker, item, 0, ERROR) == expected
    (result,) = await queue.results(["x"])
    assert result is not None
    assert (result.attempt, result.failure) == (3, "engine_error: boom")
    (letter,) = await queue.dead_letters.newest()
    assert (letter.reason, letter.attempt, letter.evidence) == ("attempts_exhausted", 3, ERROR)


async def test_retry_waits_out_its_delay(queue: Queue) -> None:
    (item,) = await claimed_by(queue, "w")
    assert await queue.nack("w", item, 3_600_000, ERROR) == "retried"
    assert await queue.status([item.id]) == [("delayed", "")]
    assert await claim(queue, "w") == []
    await make_due(queue, item.id)
    assert [again.attempt for again in await claim(queue, "w")] == [2]


async def test_release_with_a_delay_waits_it_out_uncounted(queue: Queue) -> None:
    items = await claimed_by(queue, "w", 2)
    assert await queue.release("w", items, 3_600_000) == 2
    assert await queue.status([items[0].id]) == [("delayed", "")]
    assert await claim(queue, "w") == []
    assert await audit(queue) == []
    await make_due(queue, items[0].id)
    assert [(again.id, again.attempt) for again in await claim(queue, "w")] == [(items[0].id, 1)]


@pytest.mark.parametrize("num_settled", [0, 1, 7, 63, 64])
async def test_release_at_any_point_returns_the_rest_at_once_uncounted(
    queue: Queue, num_settled: int
) -> None:
    """What a worker does on SIGTERM, after any number of its requests finished."""
    await queue.submit(some_requests(64, max_attempts=1))
    worker = await open_worker(queue)
    items = await claim(queue, worker, 64)
    await queue.submit([a_request("behind")])
    await succeed(queue, worker, items[:num_settled])
    assert await queue.release(worker, items) == 64 - num_settled
    assert await queue.deregister(worker)
    again = await claim(queue, await open_worker(queue))
    assert [item.id for item in again] == [i.id for i in items[num_settled:]] + ["behind"]
    assert {item.attempt for item in again} == {1}
    assert not any(item.crashes for item in again)
    assert await audit(queue) == []


async def test_batch_completes_once_when_sealed_before_its_end(queue: Queue) -> None:
    items = await claimed_by(queue, "w", 4, batch="b")
    assert await queue.seal("b", 4) == 0
    await succeed(queue, "w", items[:2])
    await fail(queue, "w", items[2:3])
    assert await _done(queue) == []
    await queue.cancel([items[3].id])
    assert await _done(queue) == [b"b"]
    fields = await queue.redis.hgetall(queue.keys.batch("b"))
    fields.pop(b"completed_ms")
    assert fields == {b"total": b"4", b"succeeded": b"2", b"failed": b"1", b"cancelled": b"1"}


async def test_batch_completes_once_when_sealed_after_its_end(queue: Queue) -> None:
    items = await claimed_by(queue, "w", 3, batch="b")
    await succeed(queue, "w", items)
    assert await _done(queue) == []
    assert [await queue.seal("b", 3) for _ in range(3)] == [3, 3, 3]
    await succeed(queue, "w", items)
    assert await _done(queue) == [b"b"]
    assert await queue.redis.ttl(queue.keys.batch("b")) > 0


@pytest.mark.parametrize("total", ["", "-1", "1.5", "many"])
async def test_a_total_that_is_no_number_is_refused(queue: Queue, total: Any) -> None:
    """It had been written before it was looked at, and then every end of the batch's requests failed."""
    with pytest.raises(ResponseError, match="INVALID total"):
        await queue.seal("b", total)
    assert await queue.redis.exists(queue.keys.batch("b")) == 0
    await queue.redis.hset(queue.keys.batch("b"), "total", "many")  # past the script
    items = await claimed_by(queue, "worker", batch="b")
    assert await succeed(queue, "worker", items) == [1]
    assert await queue.seal("b", 1) == 1


async def test_empty_batch_is_complete_when_sealed(queue: Queue) -> None:
    assert await queue.seal("b", 0) == 0
    assert await _done(queue) == [b"b"]


async def test_finished_ids_come_to_the_client_that_waits_capped_and_with_a_ttl(
    queue: Queue,
) -> None:
    items = await claimed_by(queue, "w", 3, reply="me")
    await queue.redis.rpush(queue.keys.finished("me"), *(str(i) for i in range(9_999)))
    await succeed(queue, "w", items)
    assert await queue.redis.llen(queue.keys.finished("me")) == 10_000
    last = await queue.redis.lrange(queue.keys.finished("me"), -3, -1)
    assert last == [item.id.encode() for item in items]
    assert await queue.redis.pttl(queue.keys.finished("me")) > 0


async def test_every_counter_returns_when_one_in_five_fails(queue: Queue) -> None:
    """1,000 requests through four slots: in-flight goes back to 0 and everything drains."""
    requests = some_requests(1000, batch="b", max_attempts=1)
    await queue.submit(requests[:500])
    await queue.submit(requests[500:])
    await queue.seal("b", 1000)
    worker = await open_worker(queue)
    num_claimed = 0
    while items := await claim(queue, worker, 4):
        for item in items:
            num_claimed += 1
            if num_claimed % 5:
                await succeed(queue, worker, [item])
            else:
                await queue.nack(worker, item, 0, ERROR)
    expected = {"submitted": 1000, "succeeded": 800, "failed": 200, "dead_lettered": 200}
    found = await counters(queue)
    assert found.pop("dead_letter_bytes") > 0
    assert found == expected
    assert await _done(queue) == [b"b"]
    assert await audit(queue) == []


async def test_settling_an_unknown_id_changes_nothing(queue: Queue) -> None:
    (item,) = await claimed_by(queue, "w")
    unknown = Settlement("unknown", 1, "succeeded", settlement(item).outcome)
    assert await queue.ack("w", [unknown]) == [0]
    assert await queue.redis.exists(queue.keys.result("unknown")) == 0
    assert await reap_all(queue) == 0


async def _done(queue: Queue) -> list[bytes | str]:
    return await queue.redis.lrange(queue.keys.batches_done, 0, -1)
