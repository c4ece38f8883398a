"""Submitting: what is accepted, once, within the caps, and what a killed producer leaves."""

import random
import subprocess
import sys
import time

import orjson
import pytest
from queues import (
    BODY,
    a_request,
    claim,
    claimed_by,
    contents,
    counters,
    make_due,
    open_worker,
    reap_all,
    some_requests,
    succeed,
)
from redis.exceptions import ResponseError

from gristmill.shared.audit import audit
from gristmill.shared.errors import QueueFull
from gristmill.shared.operations import Limits
from gristmill.shared.queue import Queue
from gristmill.shared.redis_types import AnyRedis


async def test_accepted_id_has_request_or_result_never_both(queue: Queue) -> None:
    (item,) = await claimed_by(queue, "w")
    assert await queue.redis.exists(queue.keys.request(item.id)) == 1
    assert await queue.redis.exists(queue.keys.result(item.id)) == 0
    await succeed(queue, "w", [item])
    assert await queue.redis.exists(queue.keys.request(item.id)) == 0
    assert await queue.redis.exists(queue.keys.result(item.id)) == 1


async def test_same_id_same_body_is_deduplicated(queue: Queue) -> None:
    request = a_request("same")
    assert await queue.submit([request, request]) == ["accepted", "queued"]
    assert await queue.submit([request]) == ["queued"]
    items = await claim(queue, await open_worker(queue, "w"))
    assert [item.id for item in items] == ["same"]
    assert await queue.submit([request]) == ["queued"]
    await succeed(queue, "w", items)
    assert await queue.submit([request]) == ["done"]
    assert (await counters(queue))["submitted"] == 1


@pytest.mark.parametrize("other", [{"body": b'{"prompt":"other"}'}, {"endpoint": "/tokenize"}])
async def test_same_id_with_other_body_or_endpoint_conflicts(
    queue: Queue, other: dict[str, object]
) -> None:
    request, changed = a_request("taken"), a_request("taken", **other)
    await queue.submit([request])
    assert await queue.submit([changed]) == ["conflict"]
    items = await claim(queue, await open_worker(queue, "w"))
    assert items[0].record.body == BODY
    await succeed(queue, "w", items)
    assert await queue.submit([changed]) == ["conflict"]


async def test_id_whose_result_expired_runs_again(queue: Queue) -> None:
    request = a_request("again")
    await queue.submit([request])
    worker = await open_worker(queue)
    await succeed(queue, worker, await claim(queue, worker))
    await queue.redis.delete(queue.keys.result("again"))
    assert await queue.submit([request]) == ["accepted"]
    assert [item.id for item in await claim(queue, worker)] == ["again"]


async def test_full_queue_refuses_all_and_says_how_deep_it_is(
    redis: AnyRedis, queue: Queue
) -> None:
    small = Queue(redis, queue.keys.queue, Limits(max_depth=3))
    await small.submit(some_requests(2))
    with pytest.raises(
        QueueFull, match=r"2 of 3 requests.*ask the operator to raise GRISTMILL_MAX_DEPTH"
    ) as caught:
        await small.submit(some_requests(2))
    assert (caught.value.depth, caught.value.queued_bytes > 0) == (2, True)
    assert (await counters(small))["submitted"] == 2


async def test_depth_counts_what_is_in_flight(redis: AnyRedis, queue: Queue) -> None:
    small = Queue(redis, queue.keys.queue, Limits(max_depth=2))
    await claimed_by(small, "w", 2)
    with pytest.raises(QueueFull):
        await small.submit([a_request()])


async def test_cap_on_bytes_refuses(redis: AnyRedis, queue: Queue) -> None:
    small = Queue(redis, queue.keys.queue, Limits(max_bytes=1000))
    with pytest.raises(QueueFull, match="GRISTMILL_MAX_BYTES"):
        await small.submit([a_request(body=b'{"prompt":"%s"}' % (b"x" * 2000))])


async def test_submit_sent_again_to_a_full_queue_is_not_refused(
    redis: AnyRedis, queue: Queue
) -> None:
    small = Queue(redis, queue.keys.queue, Limits(max_depth=3))
    requests = some_requests(3)
    await small.submit(requests)
    assert await small.submit(requests) == ["queued"] * 3


async def test_delayed_request_far_ahead_runs_once_when_due(queue: Queue) -> None:
    """A start time two hours ahead, leases of a fraction of it: nothing but time decides."""
    request = a_request("later", delay_s=7200)
    await queue.submit([request])
    worker = await open_worker(queue)
    assert await claim(queue, worker) == []
    assert await queue.status(["later"]) == [("delayed", "")]
    answer = await queue.claim(worker, "n", 1)
    assert answer.next_due_ms is not None
    assert 7_100_000 < answer.next_due_ms - answer.now_ms <= 7_200_000
    await make_due(queue, "later")
    await reap_all(queue)
    items = await claim(queue, worker)
    assert [item.id for item in items] == ["later"]
    assert await claim(queue, await open_worker(queue)) == []
    assert await succeed(queue, worker, items) == [1]


async def test_delayed_request_is_not_run_early_by_an_old_entry(queue: Queue) -> None:
    """Cancelled, its result gone, submitted again for later: the old entry of its lane stays behind."""
    await queue.submit([a_request("early")])
    await queue.cancel(["early"])
    await queue.redis.delete(queue.keys.result("early"))
    await queue.submit([a_request("early", delay_s=3600)])
    assert await claim(queue, await open_worker(queue)) == []
    assert await queue.status(["early"]) == [("delayed", "")]
    assert await audit(queue) == []


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (0, 'a"b'), (0, "x" * 129), (0, ""), (1, "a|b"), (1, "a\nb"), (2, "urgent"), (3, "-1"),
        (3, "soon"), (4, "1.5"), (5, "no hex"), (6, "b|1|2|3"), (6, "b|-1|2|3||/x|m||"),
        (6, "|1|2|3||/x|a\nb||"), (6, '|1|2|3||/x"|m||'), (7, b"{}"), (7, b"[1]\n{}"),
        (7, b"garbage\n{}"),
        (7, b"{not json}\n{}"), (7, b'{"a":NaN}\n{}'), (7, b'{"a":nan}\n{}'), (7, b'{"a": -Infinity}\n{}'), (7, b'{"a":[1, 01]}\n{}'),
        (7, b'{"a":0x1F}\n{}'),
        (3, "9" * 16), (1, "x" * 129), (5, "a" * 65), (6, "b" * 2000 + "|1|2|3||/v1/completions|" + "m" * 100 + "||"),
        (6, "|" + "9" * 400 + "|1|3||/v1/completions|||"),
    ],
)  # fmt: skip
async def test_malformed_submit_of_another_producer_changes_nothing(
    queue: Queue, position: int, value: str | bytes
) -> None:
    """What a script could not read later would stop every claim half-way."""
    good, bad = a_request(), list(a_request().submit_values())
    bad[position] = value
    run = queue.scripts.run
    with pytest.raises(ResponseError, match="request 2 of this call breaks the format"):
        await run("submit", 9, 9**9, *good.submit_values(), *bad)
    with pytest.raises(ResponseError, match="INVALID"):
        await run("submit", 9, 9**9, *good.submit_values()[:-1])
    assert await contents(queue) == {}


@pytest.mark.parametrize(
    "metadata", [b'{"a":0,"b":[-0.5,null,true],"c":", NaN: 01"}', b'{"a":-1,"b":{"n":"x"}}']
)
async def test_strict_metadata_is_accepted(queue: Queue, metadata: bytes) -> None:
    values = [*a_request("a").submit_values()[:7], metadata + b"\n{}"]
    assert await queue.scripts.run("submit", 9, 9**9, *values) == [b"OK", b"accepted"]
    worker = await open_worker(queue)
    await succeed(queue, worker, await claim(queue, worker))
    (result,) = await queue.results(["a"])
    assert result is not None
    assert result.metadata == orjson.loads(metadata)


async def test_submit_of_more_than_500_requests_is_refused_whole(queue: Queue) -> None:
    requests = some_requests(501)
    with pytest.raises(ResponseError, match="INVALID submit of 501 requests; a call takes at most"):
        await queue.submit(requests)
    assert await contents(queue) == {}
    assert await queue.submit(requests[:500]) == ["accepted"] * 500


PRODUCER = """
import asyncio, sys
from gristmill.shared.connection import connect
from gristmill.shared.queue import Queue
from gristmill.shared.request import Request

async def main(url, name, start):
    queue = Queue(connect(url), name)
    while True:
        ids = range(start, start + 100)
        await queue.submit([Request(id=f"k-{i}", body=b"{}", batch="b") for i in ids])
        print("ready", flush=True)  # a loaded machine needs longer than the test waits to connect
        start += 100

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


@pytest.mark.timeout(180)
async def test_producer_killed_in_mid_submit_leaves_every_request_in_one_place(
    queue: Queue, any_redis_url: str
) -> None:
    chance = random.Random(37)  # no secret
    for round_number in range(15):
        _produce_until_killed(any_redis_url, queue.keys.queue, round_number, chance.random())
    assert await audit(queue) == []
    stats = await counters(queue)
    assert stats["queued"] == stats["submitted"] > 0
    assert stats["submitted"] % 100 == 0, "a submit is accepted whole or not at all"


def _produce_until_killed(url: str, name: str, round_number: int, instant: float) -> None:
    arguments = [url, name, str(round_number * 100_000)]
    with subprocess.Popen(
        [sys.executable, "-c", PRODUCER, *arguments], stdout=subprocess.PIPE
    ) as producer:
        assert producer.stdout is not None
        producer.stdout.readline()
        time.sleep(instant * 0.05)  # a random instant, not a wait
        producer.kill()
