"""Scheduling policies: in which order claims take what waits, and that no order starves, doubles or loses anything."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import permutations
from typing import Any, get_args
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from queues import ERROR, a_request, claim, counters, fail, open_worker, outcome, some_requests

from gristmill.shared.audit import audit
from gristmill.shared.operations import Scheduling, SchedulingPolicy, Settlement
from gristmill.shared.queue import Queue
from gristmill.shared.records import Claimed

ALL: tuple[Scheduling, ...] = get_args(Scheduling)
TURN = 8
"""Requests that a lane which has waited gets ahead of the others."""

CHUNK = 16
"""Requests of one tenant that a claim takes before it looks at whose turn it is."""


async def worker_under(queue: Queue, scheduling: Scheduling, ageing_s: float = 0) -> str:
    worker = await open_worker(queue)
    await queue.register(worker, {}, SchedulingPolicy(scheduling, ageing_s))
    return worker


def another(queue: Queue) -> Queue:
    """Return a fresh queue on the same server."""
    return Queue(queue.redis, f"test-{uuid4().hex[:12]}", queue.limits)


async def ack(
    queue: Queue, worker: str, items: Iterable[Claimed], prompt_tokens: int, output_tokens: int
) -> None:
    await queue.ack(
        worker,
        [
            Settlement(i.id, i.delivery, "succeeded", outcome(i), prompt_tokens, output_tokens)
            for i in items
        ],
    )


def names(items: Sequence[Claimed]) -> list[str]:
    return [item.id for item in items]


async def test_fcfs_goes_by_arrival_alone(queue: Queue) -> None:
    worker = await worker_under(queue, "fcfs")
    requests = [
        a_request(tenant=tenant, priority=priority)
        for tenant in ("a", "b", "c") for priority in ("low", "high", "normal")
    ]  # fmt: skip
    await queue.submit(requests)
    assert names(await claim(queue, worker)) == [request.id for request in requests]


async def test_priority_goes_by_lane_then_arrival(queue: Queue) -> None:
    worker = await worker_under(queue, "priority")
    for number, priority in enumerate(["low", "high", "normal"] * 3):
        await queue.submit(
            [a_request(f"{priority}-{number}", tenant="ab"[number % 2], priority=priority)]
        )
    assert names(await claim(queue, worker)) == [
        "high-1", "high-4", "high-7", "normal-2", "normal-5", "normal-8", "low-0", "low-3", "low-6",
    ]  # fmt: skip


async def test_sjf_takes_the_shortest_first_inside_a_lane(queue: Queue) -> None:
    worker = await worker_under(queue, "sjf")
    sizes = [400, 20_000, 100, 6_000]
    await queue.submit(
        [a_request(f"s{size}", tenant=f"t{size}", max_tokens=size) for size in sizes]
    )
    await queue.submit([a_request("high", max_tokens=40_000, priority="high")])
    items = await claim(queue, worker)
    assert names(items) == ["high", "s100", "s400", "s6000", "s20000"]


async def test_sjf_gives_credit_for_waiting(queue: Queue) -> None:
    """Sixteen tokens a second: an hour outweighs 50,000 tokens, a minute does not."""
    worker = await worker_under(queue, "sjf")
    for waited_s, expected in ((60, ["short", "long"]), (3600, ["long", "short"])):
        queue = another(queue)
        await queue.register(worker, {}, SchedulingPolicy("sjf", 0))
        await queue.submit([a_request("long", max_tokens=50_000)])
        key = queue.keys.request("long")
        record: Any = await queue.redis.get(key)
        fields = record.split(b"|")
        fields[1] = str(int(fields[1]) - waited_s * 1000).encode()
        await queue.redis.set(key, b"|".join(fields))
        await queue.release(worker, await claim(queue, worker))
        await queue.submit([a_request("short", max_tokens=100)])
        assert names(await claim(queue, worker)) == expected


async def test_sjf_learns_what_a_tenant_really_generates(queue: Queue) -> None:
    """One asks for 4,000 tokens and ends after 40, the other takes all of its 1,000."""
    worker = await worker_under(queue, "sjf")
    for _ in range(3):
        await queue.submit(some_requests(128, tenant="brief", max_tokens=4_000))
        await ack(queue, worker, await claim(queue, worker), 10, 40)
    await queue.submit([a_request("full", tenant="full", max_tokens=1_000)])
    await queue.submit([a_request("brief", tenant="brief", max_tokens=4_000)])
    assert names(await claim(queue, worker)) == ["brief", "full"]


async def test_deadline_takes_the_earliest_first(queue: Queue) -> None:
    worker = await worker_under(queue, "deadline")
    await queue.submit(
        [a_request("a-far", deadline_s=30 * 86_400), a_request("late", deadline_s=7200)]
    )
    await queue.submit([a_request("b-none"), a_request("soon", deadline_s=600)])
    assert names(await claim(queue, worker)) == ["soon", "late", "a-far", "b-none"]


async def test_deadline_that_cannot_be_met_is_told_early(queue: Queue) -> None:
    worker = await worker_under(queue, "deadline")
    await queue.submit([a_request("cannot", deadline_s=60, max_tokens=4_000)])
    await queue.submit([a_request("can", deadline_s=60, max_tokens=1_000)])
    assert names(await claim(queue, worker, ms_per_token=20)) == ["can"]
    (result,) = await queue.results(["cannot"])
    assert result is not None
    assert result.status == "expired"
    assert result.failure == (
        "expired: the deadline cannot be met: about 4000 tokens at 20 ms each take longer"
    )
    assert await audit(queue) == []


async def test_other_policies_expire_nothing_early(queue: Queue) -> None:
    worker = await worker_under(queue, "sjf")
    await queue.submit([a_request("cannot", deadline_s=60, max_tokens=4_000)])
    assert names(await claim(queue, worker, ms_per_token=20)) == ["cannot"]


async def test_prefix_claims_a_group_together(queue: Queue) -> None:
    worker = await worker_under(queue, "prefix")
    requests = [a_request(f"{n:02}", prefix=f"group{n % 4}") for n in range(32)]
    await queue.submit(requests)
    groups = [int(name) % 4 for name in names(await claim(queue, worker))]
    assert groups == [0] * 8 + [1] * 8 + [2] * 8 + [3] * 8


async def test_a_group_lets_others_pass_after_256(queue: Queue) -> None:
    """A prefix that never ends does not starve who has none."""
    worker = await worker_under(queue, "prefix")
    await queue.submit([a_request(prefix="endless")])
    await queue.submit([a_request("other", prefix="other")])
    for _ in range(3):
        await queue.submit(some_requests(200, prefix="endless"))
    order = [name for _ in range(5) for name in names(await claim(queue, worker))]
    assert order.index("other") == 256


async def test_a_lane_that_waits_gets_a_turn(queue: Queue) -> None:
    worker = await worker_under(queue, "priority", ageing_s=10)
    await queue.submit(some_requests(40, priority="high"))
    await queue.submit(some_requests(40, priority="low"))
    assert {i.record.priority for i in await claim(queue, worker, 10)} == {"high"}
    await queue.redis.hincrby(queue.keys.times, "low_served_ms", -10_000)
    first = Counter(item.record.priority for item in await claim(queue, worker, 20))
    assert first == {"low": TURN, "high": 20 - TURN}
    assert {i.record.priority for i in await claim(queue, worker, 10)} == {"high"}


async def test_a_backlog_that_begins_has_no_credit(queue: Queue) -> None:
    worker = await worker_under(queue, "priority", ageing_s=10)
    await queue.submit(some_requests(1, priority="low"))
    await claim(queue, worker)
    await queue.redis.hincrby(queue.keys.times, "low_served_ms", -100_000)
    await queue.submit(some_requests(20, priority="high"))
    await queue.submit(some_requests(20, priority="low"))
    assert {i.record.priority for i in await claim(queue, worker, 20)} == {"high"}


@pytest.mark.parametrize(
    ("scheduling", "expected"),
    [
        ("fair+sjf", ["a1", "b1", "a2", "b2", "a3", "b3"]),
        ("fair+deadline", ["a3", "b3", "a2", "b2", "a1", "b1"]),
    ],
)
async def test_fair_orders_inside_a_tenants_share(
    queue: Queue, scheduling: Scheduling, expected: list[str]
) -> None:
    """Claims of one request each: the tenants take turns, each with what its order puts first."""
    worker = await worker_under(queue, scheduling)
    for tenant in "ab":
        for number in (3, 1, 2):
            await queue.submit([
                a_request(f"{tenant}{number}", tenant=tenant, max_tokens=1000 + number * 100,
                          deadline_s=(4 - number) * 3600)
            ])  # fmt: skip
    order = [name for _ in range(6) for name in names(await claim(queue, worker, 1))]
    assert order == expected


async def test_fair_holds_inside_a_priority(queue: Queue) -> None:
    worker = await worker_under(queue, "fair")
    for tenant, number in (("flood", 200), ("few", 20)):
        for priority in ("low", "high"):
            await queue.submit(some_requests(number, tenant=tenant, priority=priority))
    items = await claim(queue, worker, 40)
    assert {item.record.priority for item in items} == {"high"}
    assert Counter(item.record.tenant for item in items) == {"flood": 24, "few": 16}


costs = st.lists(st.integers(1, 4096), min_size=150, max_size=150)


@settings(
    max_examples=25, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(of_a=costs, of_b=costs, sizes=st.lists(st.integers(1, 64), min_size=4, max_size=4))
async def test_served_tokens_of_two_backlogged_tenants_differ_by_at_most_one_claim(
    queue: Queue, of_a: list[int], of_b: list[int], sizes: list[int]
) -> None:
    """Of one claim, as it may be: sixteen requests, each as large as the largest."""
    queue = another(queue)
    worker = await worker_under(queue, "fair")
    for tenant, sizes_of in (("a", of_a), ("b", of_b)):
        await queue.submit([a_request(tenant=tenant, max_tokens=tokens) for tokens in sizes_of])
    served, waiting, bound = Counter[str](), Counter(a=150, b=150), CHUNK * max(*of_a, *of_b)
    for size in sizes:
        for item in await claim(queue, worker, size):
            served[item.record.tenant] += item.record.max_tokens
            waiting[item.record.tenant] -= 1
        if min(waiting.values()) > 0:
            assert abs(served["a"] - served["b"]) <= bound


async def test_a_flood_costs_the_others_one_chunk(queue: Queue) -> None:
    """Wait counts in requests claimed before one's own: with 10,000 of one tenant ahead, and alone."""
    with_flood = await _waits(queue, flood=10_000)
    alone = await _waits(queue, flood=0)
    assert len(alone) == len(with_flood) == 99 * 5
    at_95 = len(alone) * 95 // 100
    assert sorted(with_flood)[at_95] <= sorted(alone)[at_95] + 2 * CHUNK


async def _waits(queue: Queue, flood: int) -> list[int]:
    queue = another(queue)
    worker = await worker_under(queue, "fair")
    for _ in range(0, flood, 500):
        await queue.submit(some_requests(500, tenant="flood", max_tokens=100))
    if flood:
        await claim(queue, worker, 64)
    for number in range(99):
        await queue.submit(some_requests(5, tenant=f"t{number}", max_tokens=100))
    waits: list[int] = []
    num_claimed = 0
    while len(waits) < 99 * 5:
        for item in await claim(queue, worker, 64):
            num_claimed += 1
            if item.record.tenant != "flood":
                waits.append(num_claimed)
    return waits


async def test_who_submits_little_at_a_time_pays_as_well(queue: Queue) -> None:
    """Never more than one large request waits of b, so its flow is empty between any two."""
    worker = await worker_under(queue, "fair")
    await queue.submit(some_requests(400, tenant="a", max_tokens=100))
    served = Counter[str]()
    await queue.submit([a_request(tenant="b", max_tokens=1000)])
    while served["a"] < 20_000:
        for item in await claim(queue, worker, 8):
            served[item.record.tenant] += item.record.max_tokens
            if item.record.tenant == "b":
                await queue.submit([a_request(tenant="b", max_tokens=1000)])
    assert abs(served["a"] - served["b"]) <= CHUNK * 1000


async def test_a_tenant_pays_what_was_served_and_no_less(queue: Queue) -> None:
    """Its expected output moves between claim and end, which must not give back more than was charged."""
    worker = await worker_under(queue, "fair")
    await _serve(queue, worker, 400, "evil", max_tokens=1000, output_tokens=1)
    await queue.submit(some_requests(64, tenant="evil", max_tokens=10**6))
    held = await claim(queue, worker, 64)
    await _serve(queue, worker, 400, "evil", max_tokens=1, output_tokens=1)
    for tenant in ("evil", "good"):
        await queue.submit(some_requests(200, tenant=tenant, max_tokens=1))
    await queue.ack(worker, [Settlement(i.id, i.delivery, "failed", outcome(i)) for i in held])
    shares = Counter(item.record.tenant for item in await claim(queue, worker, 64))
    assert shares == {"evil": 32, "good": 32}


@pytest.mark.parametrize("end", ["nack", "failed", "cancel", "crash"])
async def test_a_tenant_whose_requests_fail_gets_no_more_than_its_share(
    queue: Queue, end: str
) -> None:
    """Only a release is free, or a tenant whose requests all fail would get every place in the engine."""
    worker = await worker_under(queue, "fair")
    for tenant in ("fails", "good"):
        await queue.submit(some_requests(300, tenant=tenant, max_tokens=100))
    num_runs = Counter[str]()
    for _ in range(24):
        items = await claim(queue, worker, 8, max_suspects=0)
        num_runs.update(item.record.tenant for item in items)
        await ack(queue, worker, [i for i in items if i.record.tenant == "good"], 0, 100)
        await _fail(queue, worker, [i for i in items if i.record.tenant == "fails"], end)
    assert num_runs["good"] >= num_runs["fails"]


async def _fail(queue: Queue, worker: str, items: Sequence[Claimed], end: str) -> None:
    if end == "nack":
        for item in items:
            await queue.nack(worker, item, 3_600_000, ERROR)
    elif end == "failed":
        await fail(queue, worker, items)
    elif end == "cancel":
        await queue.cancel(names(items))
    elif items:
        await queue.crash(worker, {})


async def test_one_failure_with_a_huge_answer_does_not_hold_up_its_tenant(queue: Queue) -> None:
    worker = await worker_under(queue, "fair")
    await queue.submit([a_request(tenant="a", max_tokens=10**7)])
    await queue.submit(some_requests(100, tenant="b", max_tokens=100))
    for item in await claim(queue, worker, 2):
        await fail(queue, worker, [item])
    await queue.submit(some_requests(100, tenant="a", max_tokens=100))
    shares = Counter(item.record.tenant for item in await claim(queue, worker, 64))
    assert shares["a"] >= 16


async def test_a_claim_takes_from_avoided_tenants_only_if_no_other_waits(queue: Queue) -> None:
    worker = await worker_under(queue, "fair")
    await queue.submit([a_request(f"a{n}", tenant="a", priority="high") for n in range(3)])
    await queue.submit([a_request("b", tenant="b"), a_request("c", tenant="c", priority="low")])
    avoid: list[str] = []
    taken = []
    for _ in range(4):
        (item,) = await claim(queue, worker, 1, avoid=avoid)
        avoid.append(item.record.tenant)
        taken.append(item.id)
    assert taken == ["a0", "b", "c", "a1"]
    assert await audit(queue) == []


async def _serve(
    queue: Queue, worker: str, number: int, tenant: str, max_tokens: int, output_tokens: int
) -> None:
    await queue.submit(some_requests(number, tenant=tenant, max_tokens=max_tokens))
    while items := await claim(queue, worker):
        await ack(queue, worker, items, 0, output_tokens)


async def test_who_is_put_back_for_want_of_tokens_does_not_lift_virtual_time(queue: Queue) -> None:
    """One request of each always waits; the large one is popped and put back in each claim but every hundredth."""
    worker = await worker_under(queue, "fair")
    sizes, served = {"small": 100, "large": 10_000}, Counter[str]()
    for tenant, size in sizes.items():
        await queue.submit([a_request(tenant=tenant, max_tokens=size)])
    for _ in range(300):
        items = await claim(queue, worker, 8, max_tokens=1000)
        for item in items:
            served[item.record.tenant] += item.record.max_tokens
        await ack(queue, worker, items, 0, 0)
        await queue.submit(
            [a_request(tenant=i.record.tenant, max_tokens=i.record.max_tokens) for i in items]
        )
    assert abs(served["small"] - served["large"]) <= sizes["large"] + sizes["small"]


async def test_what_is_given_back_is_not_paid_for(queue: Queue) -> None:
    worker = await worker_under(queue, "fair")
    for tenant in "ab":
        await queue.submit(some_requests(200, tenant=tenant, max_tokens=100))
    for _ in range(5):
        await queue.release(worker, await claim(queue, worker, 8))
    flows: Any = await queue.redis.zrange(queue.keys.flows("normal"), 0, -1, withscores=True)
    assert all(abs(virtual_time) < 1 for _, virtual_time in flows)


async def test_of_tenants_that_start_alike_the_first_comes_first(queue: Queue) -> None:
    """A tenant for each user, as many new ones as are served: nobody waits for its name's sake."""
    worker = await worker_under(queue, "fair")
    await queue.submit([a_request("last-by-name", tenant="zed")])
    for turn in range(3):
        await queue.submit([a_request(tenant=f"user-{turn}-{n}") for n in range(8)])
        items = await claim(queue, worker, 8)
        assert ("last-by-name" in names(items)) == (turn == 0)
        await ack(queue, worker, items, 1, 1)


async def test_shares_are_of_what_is_generated(queue: Queue) -> None:
    """Both ask for 1,000 tokens; those of a end after 100, so once that is known ten times as many of its run."""
    worker = await worker_under(queue, "fair")
    for tenant in "ab":
        for _ in range(6):
            await queue.submit(some_requests(400, tenant=tenant, max_tokens=1000))
    served = Counter[str]()
    for turn in range(60):
        items = await claim(queue, worker, 32)
        for tenant, tokens in (("a", 100), ("b", 1000)):
            mine = [item for item in items if item.record.tenant == tenant]
            await ack(queue, worker, mine, 0, tokens)
            served[tenant] += tokens * len(mine) * (turn >= 20)
    assert 0.8 <= served["a"] / served["b"] <= 1.25


@pytest.mark.parametrize(("before", "after"), list(permutations(ALL, 2)))
async def test_a_change_of_policy_loses_and_doubles_nothing(
    queue: Queue, before: Scheduling, after: Scheduling
) -> None:
    worker = await worker_under(queue, before)
    fields: dict[str, Any] = {"max_tokens": 100, "deadline_s": 3600}
    requests = [
        a_request(tenant="abc"[n % 3], priority=("high", "normal", "low")[n % 3 - 1], prefix=f"p{n % 5}", **fields)
        for n in range(60)
    ]  # fmt: skip
    await queue.submit(requests[:40])
    first = await claim(queue, worker, 10)
    await queue.register(worker, {}, SchedulingPolicy(after, 0))
    await queue.submit(requests[40:])
    await queue.release(worker, first[:5])
    claimed = names(first[5:])
    while items := await claim(queue, worker, 16):
        claimed += names(items)
    assert sorted(claimed) == sorted(request.id for request in requests)
    assert (await counters(queue))["in_flight"] == 60
    assert await audit(queue) == []


async def test_a_change_of_policy_lets_neither_the_old_nor_the_new_wait(queue: Queue) -> None:
    worker = await worker_under(queue, "fcfs")
    for _ in range(4):
        await queue.submit(some_requests(400, max_tokens=100))
    await queue.register(worker, {}, SchedulingPolicy("sjf", 0))
    waiting = 1600
    while waiting > 0:  # as many come as a claim may take, and each is shorter
        await queue.submit(some_requests(64, max_tokens=1))
        assert len(await claim(queue, worker, 64)) == 64
        before, waiting = waiting, await _num_listed(queue)
        assert waiting < before


async def _num_listed(queue: Queue) -> int:
    return int(await queue.redis.llen(queue.keys.waiting("normal", "*")))


async def test_a_backlog_from_before_the_policy_is_ordered_by_it(queue: Queue) -> None:
    """Filled first, the worker with the setting second; claims of one, as a small engine makes them."""
    sizes = [60, 50, 40, 30, 20, 10, 5, 2]
    await queue.submit([a_request(f"s{size}", max_tokens=size) for size in sizes])
    worker = await worker_under(queue, "sjf")
    order = [name for _ in sizes for name in names(await claim(queue, worker, 1))]
    assert order == [f"s{size}" for size in sorted(sizes)]


async def test_a_policy_that_is_everywhere_is_not_looked_for_again(queue: Queue) -> None:
    await queue.submit(some_requests(300, tenant="a"))
    worker = await worker_under(queue, "fair+sjf")
    assert await queue.redis.hexists(queue.keys.scheduling, "is_mixed")
    for _ in range(4):
        assert len(await claim(queue, worker, 10)) == 10
    assert not await queue.redis.hexists(queue.keys.scheduling, "is_mixed")
    assert await audit(queue) == []


async def test_a_worker_without_a_policy_leaves_the_queues(queue: Queue) -> None:
    await worker_under(queue, "sjf")
    worker = await open_worker(queue)
    await queue.submit([a_request("long", max_tokens=4000), a_request("short", max_tokens=10)])
    assert names(await claim(queue, worker)) == ["short", "long"]


async def test_stats_tell_the_order_and_count_what_it_has_moved(queue: Queue) -> None:
    assert (await queue.stats()).scheduling == "fair"
    await queue.submit(some_requests(300))
    worker = await worker_under(queue, "sjf")
    await claim(queue, worker, 10)  # moves a part
    stats = await queue.stats()
    assert (stats.scheduling, stats.depth_by_lane["normal"]) == ("sjf", 290)


@pytest.mark.parametrize("weight", ["1e-308", "1e-12", "0", "-1", "nan", "inf", "1e308", "many"])
async def test_a_weight_that_makes_no_sense_stops_nobody(queue: Queue, weight: str) -> None:
    """Before there were bounds, a claim set virtual time to infinity, and every ack of that tenant failed half-way."""
    worker = await worker_under(queue, "fair")
    await queue.redis.hset(queue.keys.tenant_weights, "a", weight)
    for tenant in "abz":
        await queue.submit(some_requests(40, tenant=tenant, max_tokens=200))
    served = Counter[str]()
    while items := await claim(queue, worker, 16):
        served.update(item.record.tenant for item in items)
        await ack(queue, worker, items, 5, 20)
    assert served == {"a": 40, "b": 40, "z": 40}
    assert await audit(queue) == []
    virtual_time: Any = await queue.redis.hget(queue.keys.virtual_time, "normal")
    assert float(virtual_time) < 1e9


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("fcfs", "fair"),
        ("sjf", "fair+sjf"),
        ("prefix", "fair+deadline"),
        ("fair", "sjf"),
        ("fair+prefix", "fcfs"),
    ],
)
async def test_no_claim_goes_without_while_a_backlog_moves(
    queue: Queue, old: Scheduling, new: Scheduling
) -> None:
    """What lies where the old policy has put it must not be looked at instead of what was moved."""
    await worker_under(queue, old)
    for number in range(20):
        await queue.submit(some_requests(50, tenant=f"t{number}"))
    worker = await worker_under(queue, new)
    assert [len(await claim(queue, worker, 8)) for _ in range(20)] == [8] * 20
    assert await audit(queue) == []
