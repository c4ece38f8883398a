"""The backlog of a queue: what waits, how long it takes, whether deadlines can be met."""

import asyncio

from queues import a_request, claim, open_worker, some_requests, succeed

from gristmill.shared.backlog import NEW_QUEUE_TOKENS_PER_S, Backlog, read_backlog
from gristmill.shared.brakes import Brake
from gristmill.shared.queue import Queue
from gristmill.shared.queue_brakes import write_brake


async def test_a_new_queue_is_empty_and_has_the_pace_of_a_new_queue(queue: Queue) -> None:
    backlog = await read_backlog(queue)
    assert (backlog.num_queued, backlog.work_s, backlog.slack_s) == (0, 0, None)
    assert (backlog.tokens_per_s, backlog.is_pace_known) == (NEW_QUEUE_TOKENS_PER_S, False)
    assert backlog.oldest_s == {}


async def test_seconds_of_work_are_tokens_over_the_pace(queue: Queue) -> None:
    worker = await open_worker(queue)
    await queue.submit(some_requests(5, prompt_tokens=10, max_tokens=90))
    await claim(queue, worker, 2)
    await queue.redis.hset(queue.keys.pace, mapping={"tokens": 500, "busy_ms": 10_000})
    backlog = await read_backlog(queue)
    assert (backlog.tokens_per_s, backlog.is_pace_known, backlog.num_workers) == (50, True, 1)
    assert (backlog.queued_s, backlog.work_s) == (6, 10)
    assert (backlog.num_queued, backlog.num_in_flight) == (3, 2)


async def test_slack_is_the_least_time_that_a_deadline_leaves(queue: Queue) -> None:
    due_s = [50, *[1000] * 98, 3000]
    requests = [a_request(prompt_tokens=100, max_tokens=900, deadline_s=each) for each in due_s]
    await queue.submit(requests)
    backlog = await read_backlog(queue)
    assert [rank for rank, _ in backlog.stats.deadlines][::15] == [1, 100]
    assert backlog.slack_s is not None
    assert 48 < backlog.slack_s <= 49, "the first has 50 s for 1 s of work"
    await queue.redis.hset(queue.keys.pace, mapping={"tokens": 50, "busy_ms": 1000})
    backlog = await read_backlog(queue)
    assert backlog.slack_s is not None
    assert backlog.slack_s < -800, "1,000 s are too short for most of 2,000 s of work"


async def test_the_longest_wait_is_that_of_the_first_live_request_of_a_lane(queue: Queue) -> None:
    first, second = a_request(priority="low"), a_request(priority="low", tenant="other")
    await queue.submit([first])
    before_ms = (await queue.stats()).oldest_ms
    await asyncio.sleep(0.005)  # Redis counts milliseconds
    await queue.submit([second])
    assert (await queue.stats()).oldest_ms == before_ms, "of all tenants"
    await queue.cancel([first.id])
    after_ms = (await queue.stats()).oldest_ms
    assert [*after_ms] == ["low"]
    assert after_ms["low"] > before_ms["low"], "a cancelled request waits no longer"
    assert (await read_backlog(queue)).oldest_s["low"] >= 0


async def test_paused_and_delayed_requests_are_told_apart(queue: Queue) -> None:
    worker = await open_worker(queue)
    await queue.submit(some_requests(3))
    await fail_once(queue, worker)
    backlog = await read_backlog(queue)
    assert (backlog.num_queued, backlog.num_delayed, backlog.num_paused) == (3, 1, 0)
    await queue.redis.rpush(queue.keys.inbox, b"{}")
    await queue.pauses.pause("queue", "me", "why")
    backlog = await read_backlog(queue)
    assert (backlog.num_queued, backlog.num_inbox, backlog.num_paused) == (0, 0, 4)


async def fail_once(queue: Queue, worker: str) -> None:
    (claimed,) = await claim(queue, worker, 1)
    await queue.nack(worker, claimed, 60_000, {"code": "x", "message": "y"})


async def test_braked_workers_are_counted(queue: Queue) -> None:
    workers = [await open_worker(queue) for _ in range(2)]
    brake = Brake("500", 20, 20, "boom", "r-1")
    await write_brake(queue.redis, queue.keys, workers[0], brake, now_ms=0, lease_ms=15_000)
    backlog = await read_backlog(queue)
    assert (backlog.num_workers, backlog.num_braked) == (2, 1)


async def test_what_is_settled_is_no_work(queue: Queue) -> None:
    worker = await open_worker(queue)
    await queue.submit(some_requests(2, prompt_tokens=5, max_tokens=5))
    await succeed(queue, worker, await claim(queue, worker, 2))
    backlog = Backlog.of("q", await queue.stats())
    assert (backlog.num_queued, backlog.num_in_flight, backlog.work_s) == (0, 0, 0)
