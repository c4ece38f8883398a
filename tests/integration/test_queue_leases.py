"""Leases: who holds what, what a death costs, and whom it makes suspect."""

import asyncio
from typing import Any

import pytest
from queues import (
    ERROR,
    claim,
    claimed_by,
    counters,
    die,
    end_lease,
    fail,
    kinds_of_keys,
    make_due,
    open_worker,
    reap_all,
    some_requests,
    succeed,
)
from redis.exceptions import ResponseError

from gristmill.shared.audit import audit
from gristmill.shared.errors import LeaseLost
from gristmill.shared.operations import Limits
from gristmill.shared.queue import MOVED_A_CALL, Queue
from gristmill.shared.queue_stats import num_live
from gristmill.shared.records import Claimed
from gristmill.shared.redis_types import AnyRedis


async def test_beats_keep_ownership_through_many_lease_times(redis: AnyRedis, queue: Queue) -> None:
    """However often the lease would have ended, a beat in time keeps what the worker holds."""
    (item,) = await claimed_by(queue, "w")
    other = await open_worker(queue, "other")
    for _ in range(20):
        await redis.zincrby(queue.keys.workers, -queue.limits.lease_ms + 1000, "w")
        assert (await queue.beat("w")).num_in_flight == 1
        assert await queue.reap() == {}
        assert await claim(queue, other) == []
    assert await succeed(queue, "w", [item]) == [1]


async def test_workers_take_turns_with_the_upkeep(redis: AnyRedis, queue: Queue) -> None:
    """A worker without the turn gets the view that the one with the turn stored, with the number of live workers."""
    for name in ("w1", "w2"):
        await open_worker(queue, name)
    await queue.submit(some_requests(3))
    first = await queue.beat("w1", upkeep_ms=60_000)
    assert (first.has_turn, first.view) == (True, None)
    stored = await queue.stats(is_stored=True)
    second = await queue.beat("w2", upkeep_ms=60_000)
    assert not second.has_turn
    assert second.view is not None
    assert second.view.counters == stored.counters
    assert num_live(second.view.workers) == num_live(stored.workers) == 2
    await redis.hincrby(queue.keys.times, "upkeep_ms", -60_000)
    assert (await queue.beat("w2", upkeep_ms=60_000)).has_turn


async def test_second_owner_is_the_only_one_that_may_fail_it(queue: Queue) -> None:
    (old,) = await claimed_by(queue, "w1")
    await die(queue, "w1")
    (new,) = await claim(queue, await open_worker(queue, "w2"))
    assert await fail(queue, "w1", [old]) == [0]
    assert await fail(queue, "w2", [new]) == [1]


async def test_live_worker_is_never_reaped(queue: Queue) -> None:
    await claimed_by(queue, "busy", 5)
    await claimed_by(queue, "dead", 5)
    await end_lease(queue, "dead")
    starter = asyncio.create_task(open_worker(queue, "starting"))
    reaped = await asyncio.gather(*(queue.reap() for _ in range(10)))
    await starter
    assert [reply for reply in reaped if reply] == [{"dead": 5}]
    assert (await queue.beat("busy")).num_in_flight == 5
    assert (await queue.beat("starting")).num_in_flight == 0


async def test_reaped_worker_learns_it_from_beat_and_claim(queue: Queue) -> None:
    await claimed_by(queue, "w")
    await die(queue, "w")
    with pytest.raises(LeaseLost):
        await queue.beat("w")
    with pytest.raises(LeaseLost):
        await claim(queue, "w")


async def test_late_beat_before_any_reap_keeps_everything(queue: Queue) -> None:
    await claimed_by(queue, "w", 3)
    await end_lease(queue, "w")
    assert (await queue.beat("w")).num_in_flight == 3
    assert await queue.reap() == {}


async def test_many_reapers_at_once_requeue_each_request_once(queue: Queue) -> None:
    """No lock: whoever reaps may die, and all may reap at once."""
    items = await claimed_by(queue, "w", 100)
    await end_lease(queue, "w")
    replies = await asyncio.gather(*(queue.reap() for _ in range(20)))
    assert sum(sum(reply.values()) for reply in replies) == 100
    worker = await open_worker(queue)
    again = await claim(queue, worker, max_suspects=128)
    assert sorted(item.id for item in again) == sorted(item.id for item in items)
    assert {(item.delivery, item.attempt, item.crashes) for item in again} == {(2, 1, 1)}
    assert await audit(queue) == []


async def test_dead_worker_leaves_no_key(queue: Queue) -> None:
    items = await claimed_by(queue, "w", 2)
    await queue.cancel([items[0].id])  # leaves an id to abort
    await die(queue, "w")
    left = await kinds_of_keys(queue)
    assert left.isdisjoint({"worker", "in_flight", "owner", "last_claim", "abort", "workers"})


async def test_deregister_is_refused_while_something_is_held(queue: Queue) -> None:
    items = await claimed_by(queue, "w")
    assert not await queue.deregister("w")
    await succeed(queue, "w", items)
    assert await queue.deregister("w")
    with pytest.raises(LeaseLost):
        await queue.beat("w")


async def test_after_redis_was_away_workers_get_one_lease_to_come_back(queue: Queue) -> None:
    """The first beat after a pause of all beats opens a grace; the others come back within it."""
    await claimed_by(queue, "w1", 2)
    await claimed_by(queue, "w2", 2)
    await queue.redis.hset(queue.keys.times, "last_beat_ms", "1")
    for worker in ("w1", "w2"):
        await end_lease(queue, worker)
    await queue.beat("w1")
    assert await queue.reap() == {}
    assert (await queue.beat("w2")).num_in_flight == 2
    await queue.redis.hset(queue.keys.times, "grace_until_ms", "1")
    assert await queue.reap() == {}
    assert "crashed" not in await counters(queue)


async def test_worker_that_does_not_come_back_is_reaped_when_the_grace_ends(queue: Queue) -> None:
    await claimed_by(queue, "w1", 2)
    await queue.redis.hset(queue.keys.times, "last_beat_ms", "1")
    await open_worker(queue, "w2")
    await end_lease(queue, "w1")
    assert await queue.reap() == {}
    await queue.redis.hset(queue.keys.times, "grace_until_ms", "1")
    assert await queue.reap() == {"w1": 2}


async def test_beats_in_time_open_no_grace(queue: Queue) -> None:
    await open_worker(queue, "w")
    for _ in range(3):
        await queue.beat("w")
    assert await queue.redis.hget(queue.keys.times, "grace_until_ms") is None


@pytest.mark.timeout(180)
async def test_fifty_thousand_in_flight_on_a_hundred_dead_workers_are_all_requeued(
    redis: AnyRedis, queue: Queue
) -> None:
    queue = Queue(redis, queue.keys.queue, Limits())
    for _ in range(100):
        await queue.submit(some_requests(500))
    workers = [await open_worker(queue) for _ in range(100)]
    for worker in workers:
        for _ in range(4):
            assert len(await claim(queue, worker, 125)) == 125
    assert (await counters(queue))["in_flight"] == 50_000
    for worker in workers:
        await end_lease(queue, worker)
    sizes = []
    while reaped := await queue.reap():
        sizes.append(sum(reaped.values()))
    assert sum(sizes) == 50_000
    assert max(sizes) <= MOVED_A_CALL, "bounded items keep every script short"
    assert (await counters(queue)) == {
        "submitted": 50_000, "queued": 50_000, "queued_tokens": 50_000, "crashed": 50_000, "reaped_workers": 100,
        "bytes": (await counters(queue))["bytes"],
    }  # fmt: skip
    assert await audit(queue) == []


# -- suspects ---------------------------------------------------------------------------------------


async def test_what_was_in_flight_at_a_death_is_claimed_first_and_marked(queue: Queue) -> None:
    items = await claimed_by(queue, "w", 3)
    await queue.submit(some_requests(3, priority="high"))
    await die(queue, "w")
    again = await claim(queue, await open_worker(queue), max_suspects=3)
    assert [item.id for item in again[:3]] == [item.id for item in items]
    assert [item.crashes for item in again] == [1, 1, 1, 0, 0, 0]
    assert {item.attempt for item in again} == {1}, "a death is no attempt"


@pytest.mark.parametrize("width", [0, 1, 2, 5])
async def test_width_bounds_suspects_of_one_claim(queue: Queue, width: int) -> None:
    await claimed_by(queue, "w", 8)
    await die(queue, "w")
    await queue.submit(some_requests(4))
    again = await claim(queue, await open_worker(queue), max_suspects=width)
    assert sum(item.crashes for item in again) == width
    assert len(again) == width + 4


async def test_lone_suspect_at_a_death_is_dead_lettered_with_evidence(queue: Queue) -> None:
    await claimed_by(queue, "w", 2)
    await die(queue, "w")
    await queue.submit(some_requests(3))
    worker = await open_worker(queue, "w2")
    suspect, *others = await claim(queue, worker)
    assert await queue.crash(worker, {"exit_code": -9}) == (4, [suspect.id])
    (letter,) = await queue.dead_letters.newest()
    assert (letter.id, letter.reason, letter.crashes) == (suspect.id, "engine_killed", 2)
    assert letter.evidence == {"exit_code": -9}
    assert letter.record.endswith(suspect.record.body)
    (result,) = await queue.results([suspect.id])
    assert result is not None
    assert result.failure.startswith("engine_killed: the engine died 2 times")
    assert await queue.results([item.id for item in others]) == [None] * 3


async def test_evidence_of_a_whole_workers_death_says_what_it_was(queue: Queue) -> None:
    await _suspects(queue, "w", 1)
    facts = {"device": 'H100 "80"', "engine_args": "--model x", "body_schemas": "x" * 40_000}
    await queue.register("w", facts)
    await die(queue, "w")
    (letter,) = await queue.dead_letters.newest()
    evidence = letter.evidence
    assert (letter.reason, evidence["worker"], evidence["cause"]) == (
        "engine_killed", "w", "lease expired",
    )  # fmt: skip
    assert (evidence["device"], evidence["engine_args"]) == ('H100 "80"', "--model x")
    assert "body_schemas" not in evidence


async def test_death_with_several_suspects_proves_nothing(queue: Queue) -> None:
    await _suspects(queue, "w", 2)
    assert await queue.crash("w", {}) == (2, [])
    assert await queue.dead_letters.newest() == []
    assert await audit(queue) == []


async def test_suspect_of_two_deaths_is_claimed_only_when_it_runs_alone(queue: Queue) -> None:
    await _suspects(queue, "w", 2)
    await queue.crash("w", {})
    assert await claim(queue, "w", max_suspects=8, has_suspects=True) == []
    (alone,) = await claim(queue, "w", max_suspects=8)
    assert alone.crashes == 2
    assert await queue.crash("w", {}) == (1, [alone.id])
    assert [letter.id for letter in await queue.dead_letters.newest()] == [alone.id]


async def test_suspect_of_two_deaths_waits_behind_one_of_the_same_claim(queue: Queue) -> None:
    items = await _suspects(queue, "w", 2)
    await queue.crash("w", {})
    await queue.submit(some_requests(1))
    await claim(queue, await open_worker(queue, "other"), 1, max_suspects=0)
    await die(queue, "other")  # its request is a suspect of one death, before the two
    first, *rest = await claim(queue, "w", max_suspects=8)
    assert (first.crashes, rest) == (1, [])
    assert first.id not in {item.id for item in items}


async def test_one_culprit_costs_at_most_three_deaths_and_no_innocent(queue: Queue) -> None:
    items = await claimed_by(queue, "w", 60)
    culprit, deaths = items[37].id, 0
    held = items
    while held:
        if culprit in {item.id for item in held}:
            deaths += 1
            await queue.crash("w", {})
        else:
            await succeed(queue, "w", held)
        held = await claim(queue, "w", max_suspects=2)
    assert deaths <= 3
    assert [letter.id for letter in await queue.dead_letters.newest()] == [culprit]
    assert (await counters(queue))["succeeded"] == 59
    assert await audit(queue) == []


async def test_retried_suspect_stays_in_the_suspects_lane(queue: Queue) -> None:
    (item,) = await _suspects(queue, "w", 1)
    await queue.nack("w", item, 0, ERROR)
    assert await claim(queue, "w", max_suspects=0) == []
    assert [again.crashes for again in await claim(queue, "w")] == [1]


async def test_delayed_suspect_comes_back_to_the_suspects_lane(queue: Queue) -> None:
    (item,) = await _suspects(queue, "w", 1)
    await queue.nack("w", item, 3_600_000, ERROR)
    await make_due(queue, item.id)
    assert await claim(queue, "w", max_suspects=0) == []
    assert [again.crashes for again in await claim(queue, "w")] == [1]


async def test_released_suspect_stays_a_suspect(queue: Queue) -> None:
    (item,) = await _suspects(queue, "w", 1)
    await queue.release("w", [item])
    assert [again.crashes for again in await claim(queue, "w")] == [1]


async def test_release_makes_nobody_suspect(queue: Queue) -> None:
    items = await claimed_by(queue, "w", 3)
    await queue.release("w", items)
    assert (await queue.stats()).depth_by_lane["suspect"] == 0


async def test_crash_keeps_the_lease(queue: Queue) -> None:
    await claimed_by(queue, "w", 3)
    assert [(await queue.crash("w", {}))[0] for _ in range(2)] == [3, 0]
    assert (await queue.beat("w")).num_in_flight == 0


async def test_a_verdict_never_rests_on_a_part_of_what_a_dead_worker_held(queue: Queue) -> None:
    """Deaths of one instant share the limit of a reap; a slice must not leave one suspect alone."""
    await _suspects(queue, "w2", 2)
    await open_worker(queue, "w1")
    await queue.submit(some_requests(MOVED_A_CALL - 1))
    await claim(queue, "w1")
    await queue.redis.zadd(queue.keys.workers, {"w1": 1, "w2": 2})
    assert await queue.reap() == {"w1": MOVED_A_CALL - 1, "w2": 0}
    assert await queue.reap() == {"w2": 2}
    assert await queue.dead_letters.newest() == []
    assert await audit(queue) == []


async def test_engine_death_with_more_in_flight_than_one_call_moves(queue: Queue) -> None:
    for _ in range(3):
        await queue.submit(some_requests(128))
    await open_worker(queue, "w")
    for _ in range(3):
        await claim(queue, "w")
    moved = []
    while number := (await queue.crash("w", {}))[0]:
        moved.append(number)
    assert moved == [MOVED_A_CALL] * 3 + [84]
    assert {c.crashes for c in await claim(queue, "w", max_suspects=128)} == {1}
    assert await reap_all(queue) == 0


async def _suspects(queue: Queue, worker: str, number: int) -> list[Claimed]:
    """Return fresh suspects of one death that a worker holds."""
    await claimed_by(queue, f"{worker}-before", number)
    await die(queue, f"{worker}-before")
    return await claim(queue, await open_worker(queue, worker), max_suspects=number)


@pytest.mark.parametrize("name", ["", "a|b", "w|5|high|victim", "a b", "näme", b"\xff"])
async def test_worker_whose_name_would_read_as_a_charge_is_refused(queue: Queue, name: Any) -> None:
    with pytest.raises(ResponseError, match="INVALID worker name"):
        await queue.register(name, {"model": "m"})
    assert (await queue.stats()).workers == {}


@pytest.mark.parametrize("ageing_ms", ["", "x", "-1", "1e3"])
async def test_an_ageing_that_is_no_number_stops_no_claim(queue: Queue, ageing_ms: str) -> None:
    with pytest.raises(ResponseError, match="INVALID lease_ms or ageing_ms"):
        await queue.scripts.run("register", "w", 15_000, "fair", ageing_ms, "model", "m")
    await queue.redis.hset(queue.keys.scheduling, "ageing_ms", "x")  # past the script
    assert len(await claimed_by(queue, "worker")) == 1
