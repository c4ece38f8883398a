"""Claiming: order, shares, budgets, and that a claim that is cancelled or repeated loses nothing."""

import asyncio
import random
from collections import Counter
from uuid import uuid4

import pytest
from queues import (
    a_request,
    claim,
    claimed_by,
    counters,
    die,
    open_worker,
    some_requests,
    succeed,
)

from gristmill.shared.audit import audit
from gristmill.shared.errors import LeaseLost
from gristmill.shared.operations import ClaimTerms, SuspectRoom
from gristmill.shared.queue import Queue


async def test_claim_takes_priorities_in_strict_order(queue: Queue) -> None:
    for priority in ("low", "normal", "high"):
        await queue.submit(some_requests(10, priority=priority))
    items = await claim(queue, await open_worker(queue), 25)
    assert [item.record.priority for item in items] == ["high"] * 10 + ["normal"] * 10 + ["low"] * 5


async def test_claim_keeps_the_order_of_one_tenant(queue: Queue) -> None:
    requests = some_requests(40)
    await queue.submit(requests)
    worker = await open_worker(queue)
    items = await claim(queue, worker, 7) + await claim(queue, worker)
    assert [item.id for item in items] == [request.id for request in requests]


async def test_tenants_share_by_estimated_tokens(queue: Queue) -> None:
    """Requests of b cost four times those of a, so a gets four times as many."""
    await queue.submit(some_requests(400, tenant="a", prompt_tokens=50, max_tokens=50))
    await queue.submit(some_requests(400, tenant="b", prompt_tokens=200, max_tokens=200))
    worker = await open_worker(queue)
    shares = Counter[str]()
    for _ in range(5):
        shares.update(item.record.tenant for item in await claim(queue, worker, 64))
    assert 3 <= shares["a"] / shares["b"] <= 5


async def test_a_weight_multiplies_a_tenants_share(queue: Queue) -> None:
    await queue.tenants.set_weights({"a": 3})
    for tenant in ("a", "b"):
        await queue.submit(some_requests(400, tenant=tenant, max_tokens=100))
    worker = await open_worker(queue)
    shares = Counter[str]()
    for _ in range(5):
        shares.update(item.record.tenant for item in await claim(queue, worker, 64))
    assert 2.3 <= shares["a"] / shares["b"] <= 4


async def test_one_boundless_estimate_does_not_end_fairness(queue: Queue) -> None:
    for tenant in ("greedy", "modest"):
        await queue.submit(some_requests(40, tenant=tenant, max_tokens=100))
    await queue.submit([a_request("huge", tenant="greedy", max_tokens=2**49, priority="high")])
    await queue.submit([a_request("vast", tenant="third", max_tokens=2**49)])
    worker = await open_worker(queue)
    tenants = [item.record.tenant for item in await claim(queue, worker, 60)]
    assert 20 <= tenants.count("modest") <= 35


@pytest.mark.parametrize("weight", ["0", "-1", "heavy", "nan", ""])
async def test_a_weight_without_sense_counts_as_one(queue: Queue, weight: str) -> None:
    await queue.redis.hset(queue.keys.tenant_weights, "a", weight)
    for tenant in ("a", "b"):
        await queue.submit(some_requests(40, tenant=tenant, max_tokens=100))
    items = await claim(queue, await open_worker(queue), 64)
    assert Counter(item.record.tenant for item in items) == {"a": 32, "b": 32}
    assert await queue.tenants.weights() == {"a": 1}
    assert await audit(queue) == []


async def test_requests_without_estimates_do_not_starve_other_tenants(queue: Queue) -> None:
    await queue.submit(some_requests(200, tenant="a", prompt_tokens=0, max_tokens=0))
    await queue.submit(some_requests(8, tenant="b", prompt_tokens=0, max_tokens=0))
    items = await claim(queue, await open_worker(queue), 32)
    assert Counter(item.record.tenant for item in items)["b"] == 8


async def test_an_idle_tenant_saves_up_no_share(queue: Queue) -> None:
    await queue.submit(some_requests(300, tenant="a", max_tokens=10))
    worker = await open_worker(queue)
    await claim(queue, worker, 100)
    await queue.submit(some_requests(300, tenant="b", max_tokens=10))
    shares = Counter(item.record.tenant for item in await claim(queue, worker, 64))
    assert 24 <= shares["b"] <= 40


async def test_token_budget_ends_a_claim_but_the_first_request_fits(queue: Queue) -> None:
    requests = some_requests(6, prompt_tokens=60, max_tokens=40)
    await queue.submit(requests)
    worker = await open_worker(queue)
    first = await claim(queue, worker, max_tokens=10)
    second = await claim(queue, worker, max_tokens=350)
    assert [item.id for item in first + second] == [request.id for request in requests[:4]]
    assert (await counters(queue))["queued"] == 2
    assert await audit(queue) == []


LARGE = b'{"prompt":"' + b"x" * 300_000 + b'"}'


async def test_bytes_end_a_claim_but_the_first_request_fits(queue: Queue) -> None:
    """The order stays, and small requests do not pass a large one."""
    bodies = {f"{n}": b"{}" if n in (0, 4) else LARGE for n in range(6)}
    await queue.submit([a_request(name, body=body) for name, body in bodies.items()])
    worker, taken = await open_worker(queue), []
    while items := await claim(queue, worker, max_bytes=700_000):
        taken.append([item.id for item in items])
    assert taken == [["0", "1", "2"], ["3", "4", "5"]]
    await queue.submit([a_request("large", body=LARGE), a_request("next", body=LARGE)])
    assert [item.id for item in await claim(queue, worker, max_bytes=1)] == ["large"]
    assert [item.id for item in await claim(queue, worker, max_bytes=1)] == ["next"]


async def test_a_full_claim_reads_no_record_that_it_may_not_take(queue: Queue) -> None:
    await queue.submit([a_request(body=LARGE, tenant=f"t{n % 3}") for n in range(40)])
    worker = await open_worker(queue)
    assert len(await claim(queue, worker, max_bytes=1_000_000)) == 3
    assert (await counters(queue))["large"] == 40
    assert await audit(queue) == []


async def test_large_requests_are_counted_until_they_end(queue: Queue) -> None:
    await queue.submit([a_request(name, body=LARGE) for name in "abc"])
    worker = await open_worker(queue)
    await queue.cancel(["b"])
    items = await claim(queue, worker, 1)
    assert (await counters(queue))["large"] == 2
    await succeed(queue, worker, items + await claim(queue, worker))
    assert "large" not in await counters(queue)


async def test_empty_claim_leaves_counters_alone(queue: Queue) -> None:
    """An early draft wrote "-0" into a counter here."""
    worker = await open_worker(queue)
    assert await claim(queue, worker) == []
    assert await counters(queue) == {}


async def test_claim_sent_twice_returns_the_same_requests(queue: Queue) -> None:
    await queue.submit(some_requests(10))
    worker = await open_worker(queue)
    first = await queue.claim(worker, "n1", 4)
    again = await queue.claim(worker, "n1", 4)
    assert list(again.claimed) == list(first.claimed)
    await succeed(queue, worker, first.claimed[:1])
    assert [i.id for i in (await queue.claim(worker, "n1", 4)).claimed] == [
        i.id for i in first.claimed[1:]
    ]
    assert (await counters(queue))["in_flight"] == 3


async def test_claim_is_remembered_however_long_redis_was_away(queue: Queue) -> None:
    worker = await open_worker(queue)
    await queue.submit(some_requests(1))
    await queue.claim(worker, "n", 1)
    assert await queue.redis.ttl(queue.keys.last_claim(worker)) == -1
    await die(queue, worker)
    assert not await queue.redis.exists(queue.keys.last_claim(worker))


async def test_claim_without_a_lease_is_refused(queue: Queue) -> None:
    await queue.submit(some_requests(1))
    with pytest.raises(LeaseLost, match="worker ghost holds no lease"):
        await claim(queue, "ghost")
    assert (await counters(queue))["queued"] == 1


async def test_claim_skips_request_whose_lease_is_live(queue: Queue) -> None:
    await claimed_by(queue, "w1", 5)
    assert await claim(queue, await open_worker(queue, "w2")) == []


async def test_tombstones_of_cancelled_requests_are_skipped(queue: Queue) -> None:
    requests = some_requests(40)
    await queue.submit(requests)
    await queue.cancel([request.id for request in requests[:30]])
    items = await claim(queue, await open_worker(queue))
    assert [item.id for item in items] == [request.id for request in requests[30:]]
    assert await audit(queue) == []


async def test_one_claim_examines_a_bounded_number_of_tombstones(queue: Queue) -> None:
    for _ in range(3):
        requests = some_requests(300)
        await queue.submit(requests)
        await queue.cancel([request.id for request in requests])
    await queue.submit([a_request("alive")])
    worker = await open_worker(queue)
    claims = [await claim(queue, worker) for _ in range(4)]
    assert [len(items) for items in claims] == [0, 0, 0, 1]
    assert await queue.redis.llen(queue.keys.doorbell) == 0


async def test_tombstones_pass_the_bell_on(queue: Queue) -> None:
    requests = some_requests(300)
    await queue.submit(requests)
    await queue.cancel([request.id for request in requests])
    await queue.submit([a_request("alive")])
    await queue.redis.delete(queue.keys.doorbell)
    await claim(queue, await open_worker(queue))
    assert await queue.redis.llen(queue.keys.doorbell) == 1


@pytest.mark.parametrize("again", [{}, {"priority": "low"}, {"tenant": "other"}])
async def test_id_twice_in_lanes_is_claimed_once(queue: Queue, again: dict[str, str]) -> None:
    """Cancelled, its result gone, submitted again: an entry of its first life is still there."""
    await queue.submit([a_request("twice")])
    await queue.cancel(["twice"])
    await queue.redis.delete(queue.keys.result("twice"))
    await queue.submit([a_request("twice", **again)])
    first, second = await open_worker(queue), await open_worker(queue)
    items = await claim(queue, first, 1) + await claim(queue, second) + await claim(queue, first)
    assert [item.id for item in items] == ["twice"]
    assert items[0].record.priority == again.get("priority", "normal")
    assert await audit(queue) == []


async def test_an_old_entry_does_not_let_a_suspect_out_of_its_lane(queue: Queue) -> None:
    for _ in range(2):
        await queue.submit([a_request("twice")])
        await queue.cancel(["twice"])
        await queue.redis.delete(queue.keys.result("twice"))
    await queue.submit([a_request("twice")])
    assert len(await claim(queue, await open_worker(queue, "w1"), 1)) == 1
    await die(queue, "w1")
    assert await claim(queue, await open_worker(queue, "w2"), max_suspects=0) == []
    assert [item.crashes for item in await claim(queue, "w2")] == [1]


@pytest.mark.parametrize(
    "record",
    [b"", b"2|new version\n\n{}", b"1|1|0|default|normal|ab||1|1|3\n\n{}", b"\x00\xff",
     b"1|1|0|default|urgent|ab||1|1|3||/v1/x|m||\n\n{}"],
)  # fmt: skip
async def test_record_that_cannot_be_read_is_a_dead_letter_with_its_bytes(
    queue: Queue, record: bytes
) -> None:
    """And its neighbours of the same claim are served."""
    requests = [a_request("a"), a_request("b"), a_request("c")]
    await queue.submit(requests)
    size = await queue.redis.strlen(queue.keys.request("b"))
    grown = len(record or b"x") - size
    await queue.redis.hincrby(queue.keys.stats, "bytes", grown)
    await queue.redis.hincrby(queue.keys.tenant_load, "default|bytes", grown)
    await queue.redis.set(queue.keys.request("b"), record or b"x")
    items = await claim(queue, await open_worker(queue))
    assert [item.id for item in items] == ["a", "c"]
    (letter,) = await queue.dead_letters.newest()
    assert (letter.id, letter.reason, letter.record) == ("b", "unreadable", record or b"x")
    (result,) = await queue.results(["b"])
    assert result is not None
    assert result.failure.startswith("unreadable:")
    assert await audit(queue) == []
    assert await queue.dead_letters.requeue("b", "b2") == "missing"


@pytest.mark.parametrize("operation", ["cancel", "expire"])
async def test_record_that_cannot_be_read_can_still_be_ended(queue: Queue, operation: str) -> None:
    await queue.submit([a_request("b", deadline_s=3600)])
    await queue.redis.set(queue.keys.request("b"), b"alien")
    await queue.redis.zadd(queue.keys.deadlines, {"b": 1})
    if operation == "cancel":
        assert await queue.cancel(["b"]) == ["queued"]
    assert await queue.expire() == (operation == "expire")
    assert await queue.status(["b"]) == [("done", "")]
    assert await queue.redis.zcard(queue.keys.deadlines) in (0, 1)


async def test_doorbell_holds_few_tokens(queue: Queue) -> None:
    for _ in range(20):
        await queue.submit(some_requests(1))
    assert 1 <= await queue.redis.llen(queue.keys.doorbell) <= 4


async def test_claim_passes_the_bell_on_while_work_remains_and_then_silences_it(
    queue: Queue,
) -> None:
    await queue.submit(some_requests(10))
    await queue.redis.delete(queue.keys.doorbell)
    worker = await open_worker(queue)
    await claim(queue, worker, 5)
    assert await queue.redis.llen(queue.keys.doorbell) == 1
    await claim(queue, worker, 5)
    assert await queue.redis.llen(queue.keys.doorbell) == 0


async def test_worker_that_may_not_take_what_waits_does_not_wake_itself(queue: Queue) -> None:
    """Only suspects wait and the worker runs one: a bell at each claim would spin it."""
    await claimed_by(queue, "w1", 2)
    await die(queue, "w1")
    worker = await open_worker(queue)
    await queue.redis.delete(queue.keys.doorbell)
    assert await claim(queue, worker, max_suspects=0) == []
    assert await queue.redis.llen(queue.keys.doorbell) == 0


@pytest.mark.timeout(180)
async def test_claims_cancelled_a_thousand_times_lose_nothing(queue: Queue) -> None:
    """10,000 are produced meanwhile. Half of the cancelled claims are sent again, half forgotten."""
    chance = random.Random(36)  # no secret
    total, num_cancelled, num_settled = 10_000, 0, 0
    producer = asyncio.create_task(_produce(queue, total))
    worker = await open_worker(queue)
    nonce = uuid4().hex
    while num_cancelled < 1000 or not producer.done():
        task = asyncio.create_task(
            queue.claim(worker, nonce, 8, ClaimTerms(suspects=SuspectRoom(8)))
        )
        if chance.random() < 0.7 and num_cancelled < 1000:
            for _ in range(chance.randrange(12)):
                await asyncio.sleep(0)
            num_cancelled += task.cancel()
        (answer,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(answer, BaseException):
            nonce = nonce if chance.random() < 0.5 else uuid4().hex
            continue
        num_settled += sum(await succeed(queue, worker, answer.claimed))
        nonce = uuid4().hex
    await producer
    await die(queue, worker)  # what was forgotten comes back
    worker = await open_worker(queue)
    while items := await claim(queue, worker, max_suspects=128):
        num_settled += len(await succeed(queue, worker, items))
    assert num_settled == total
    assert (await counters(queue))["succeeded"] == total
    assert await audit(queue) == []


async def _produce(queue: Queue, total: int) -> None:
    for _ in range(total // 100):
        await queue.submit(some_requests(100))
        await asyncio.sleep(0)
