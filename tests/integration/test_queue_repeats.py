"""Lost replies: an operation that is sent again changes nothing a second time."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from queues import (
    ERROR,
    a_request,
    claim,
    claimed_by,
    contents,
    counters,
    end_lease,
    fail,
    make_due,
    open_worker,
    some_requests,
    succeed,
)
from servers import ask_all

from gristmill.shared.audit import audit
from gristmill.shared.connection import connect
from gristmill.shared.event_streams import Append
from gristmill.shared.queue import Queue
from gristmill.shared.records import Claimed
from gristmill.shared.redis_retry import retrying

Operation = Callable[[], Awaitable[Any]]
Case = Callable[[Queue, list[Claimed]], Operation]

CASES: dict[str, tuple[Case, Any]] = {
    "submit": (lambda q, _: lambda: q.submit([a_request("new", deadline_s=9)]), ["queued"]),
    "claim": (lambda q, _: lambda: q.claim("w", "nonce", 8), None),
    "admit": (lambda q, _: lambda: q.admit("w", "1", a_request("admitted")), "gone"),
    "admit garbage": (lambda q, _: lambda: q.admit_garbage("w", "1", "inbox-1", {}), "gone"),
    "ack": (lambda q, held: lambda: succeed(q, "w", held), [0] * 4),
    "ack of a failure": (lambda q, held: lambda: fail(q, "w", held), [0] * 4),
    "late ack": (lambda q, held: lambda: succeed(q, "other", held), [0] * 4),
    "append_events": (
        lambda q, held: lambda: q.events.append("w", [Append(held[0], 1, b"x", "")], 60_000, 9),
        [1],
    ),
    "nack": (lambda q, held: lambda: q.nack("w", held[0], 0, ERROR), "stale"),
    "nack with delay": (lambda q, held: lambda: q.nack("w", held[0], 9_000, ERROR), "stale"),
    "release": (lambda q, held: lambda: q.release("w", held), 0),
    "release with delay": (lambda q, held: lambda: q.release("w", held, 9_000), 0),
    "crash": (lambda q, _: lambda: q.crash("w", {}), (0, [])),
    "cancel": (lambda q, held: lambda: q.cancel([held[0].id, "waits"]), ["done", "done"]),
    "reap": (lambda q, _: q.reap, {}),
    "expire": (lambda q, _: q.expire, 0),
    "seal": (lambda q, _: lambda: q.seal("b", 5), 0),
    "requeue": (lambda q, _: lambda: q.dead_letters.requeue("dead", "requeued"), "queued"),
    "deregister": (lambda q, _: lambda: q.deregister("idle"), True),
    "end of a producer": (lambda q, _: lambda: q.producers.end("producer"), None),
    "purge": (lambda q, _: lambda: q.dead_letters.purge(["dead"]), 0),
    "clear_lanes": (lambda q, _: lambda: q.scripts.run("clear_lanes", "left", 500), 0),
}


async def a_busy_queue(queue: Queue) -> list[Claimed]:
    """A queue in which every operation has something to do; returns what worker `w` holds."""
    await queue.submit([a_request("dead", max_attempts=1)])
    worker = await open_worker(queue, "w")
    (item,) = await claim(queue, worker)
    await queue.nack(worker, item, 0, ERROR)
    await queue.redis.rpush(queue.keys.inbox, b'{"prompt":"x"}')
    held = await claimed_by(queue, "w", 4, batch="b", reply="me")
    await claimed_by(queue, "gone", 3)
    await end_lease(queue, "gone")
    await open_worker(queue, "idle")
    await queue.submit([a_request("waits"), a_request("due", delay_s=60)])
    await make_due(queue, "due")
    await queue.submit([a_request("overdue", deadline_s=60)])
    await queue.redis.zadd(queue.keys.deadlines, {"overdue": 1})
    await queue.producers.hold("producer")
    await queue.submit([a_request("tombstone", tenant="left")])
    await queue.cancel(["tombstone"])
    return held


@pytest.mark.parametrize("name", CASES)
async def test_operation_sent_again_changes_nothing_twice(queue: Queue, name: str) -> None:
    case, again = CASES[name]
    operation = case(queue, await a_busy_queue(queue))
    before = await contents(queue)
    first = await operation()
    after = await contents(queue)
    assert after != before, "the operation did nothing to begin with"
    second = await operation()
    if name == "claim":
        assert (list(second.claimed), second.inbox) == (list(first.claimed), first.inbox)
    else:
        assert second == again
    assert _without_bell(await contents(queue), queue) == _without_bell(after, queue)
    assert await audit(queue) == []


@pytest.mark.parametrize("name", ["register", "beat"])
async def test_worker_that_says_it_again_only_renews_its_lease(queue: Queue, name: str) -> None:
    await a_busy_queue(queue)
    operations: dict[str, Operation] = {
        "register": lambda: queue.register("w", {"model": "m"}),
        "beat": lambda: queue.beat("w"),
    }
    await operations[name]()
    counted = await counters(queue)
    await operations[name]()
    assert await counters(queue) == counted
    assert await audit(queue) == []


@pytest.mark.parametrize("name", ["submit", "claim", "ack", "nack", "release", "cancel"])
async def test_reply_lost_to_a_stall_is_made_up_for_by_a_repeat(
    queue: Queue, any_redis_url: str, name: str
) -> None:
    """The server stalls longer than the client waits, then runs both the call and its repeat."""
    case, _ = CASES[name]
    hasty = Queue(connect(any_redis_url, socket_timeout_s=0.1), queue.keys.queue, queue.limits)
    held = await a_busy_queue(queue)
    counted = await counters(queue)
    await hasty.stats()
    ask_all(any_redis_url, "CLIENT", "PAUSE", 300, "WRITE")
    await retrying(case(hasty, held))
    moved = {n: v - counted.get(n, 0) for n, v in (await counters(queue)).items()}
    expected = {
        "submit": ("submitted", 1), "claim": ("in_flight", 3), "ack": ("succeeded", 4),
        "nack": ("retried", 1), "release": ("released", 4), "cancel": ("cancelled", 2),
    }  # fmt: skip
    field, number = expected[name]
    assert moved[field] == number
    assert await audit(queue) == []
    await hasty.redis.aclose()


async def test_scripts_come_back_after_the_server_forgot_them(
    queue: Queue, any_redis_url: str
) -> None:
    await queue.submit(some_requests(1))
    ask_all(any_redis_url, "SCRIPT", "FLUSH")
    assert len(await claim(queue, await open_worker(queue))) == 1


def _without_bell(found: dict[str, Any], queue: Queue) -> dict[str, Any]:
    """The bell may ring again: a token too many costs one empty claim."""
    return {key: value for key, value in found.items() if key != queue.keys.doorbell}
