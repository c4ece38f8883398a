"""A paused queue or batch gives nothing to claims; what runs ends, and submits are accepted."""

from typing import Any

import pytest
from queues import a_request, claim, make_due, open_worker, some_requests, succeed
from redis.exceptions import ResponseError

from gristmill.shared.audit import audit
from gristmill.shared.operations import LaneRoom, SchedulingPolicy
from gristmill.shared.pauses import WHOLE_QUEUE, Pause, batch_scope
from gristmill.shared.queue import Queue

NIGHTLY = batch_scope("nightly")


async def test_nothing_is_claimed_from_a_paused_queue(queue: Queue) -> None:
    worker = await open_worker(queue)
    await queue.submit(some_requests(3))
    running = await claim(queue, worker, 1)
    assert await queue.pauses.pause(WHOLE_QUEUE, "ann@desk", "the card is hot")
    assert await claim(queue, worker) == []
    assert await succeed(queue, worker, running) == [1]
    assert await queue.submit(some_requests(1)) == ["accepted"]
    assert await queue.pauses.resume(WHOLE_QUEUE)
    assert len(await claim(queue, worker)) == 3


async def test_a_paused_queue_leaves_its_inbox_alone(queue: Queue) -> None:
    worker = await open_worker(queue)
    await queue.redis.rpush(queue.keys.inbox, b"{}")
    await queue.pauses.pause(WHOLE_QUEUE, "ann")
    assert (await queue.claim(worker, "n1", 1)).inbox == []
    await queue.pauses.resume(WHOLE_QUEUE)
    assert len((await queue.claim(worker, "n2", 1)).inbox) == 1


async def test_a_claim_sent_again_after_a_pause_returns_the_same(queue: Queue) -> None:
    worker = await open_worker(queue)
    await queue.submit(some_requests(2))
    first = await queue.claim(worker, "nonce", 2)
    await queue.pauses.pause(WHOLE_QUEUE, "ann")
    assert list((await queue.claim(worker, "nonce", 2)).claimed) == list(first.claimed)


async def test_a_pause_tells_who_when_and_why(queue: Queue) -> None:
    before_ms = (await queue.stats()).now_ms
    await queue.pauses.pause(WHOLE_QUEUE, "ann@desk", 'a "quoted" reason')
    assert not await queue.pauses.pause(WHOLE_QUEUE, "bob", "another")
    stats = await queue.stats()
    pause = stats.pauses[WHOLE_QUEUE]
    assert (pause.by, pause.reason) == ("ann@desk", 'a "quoted" reason')
    assert before_ms <= pause.at_ms <= stats.now_ms
    assert await queue.pauses.resume(WHOLE_QUEUE)
    assert not await queue.pauses.resume(WHOLE_QUEUE)
    assert (await queue.stats()).pauses == {}


async def test_resume_wakes_an_idle_worker(queue: Queue) -> None:
    worker = await open_worker(queue)
    await queue.submit(some_requests(1))
    await queue.pauses.pause(WHOLE_QUEUE, "ann")
    await claim(queue, worker)
    await queue.redis.delete(queue.keys.doorbell)
    await queue.pauses.resume(WHOLE_QUEUE)
    assert await queue.redis.llen(queue.keys.doorbell) == 1


async def test_other_batches_go_on_while_one_is_paused(queue: Queue) -> None:
    worker = await open_worker(queue)
    await queue.submit([a_request("n1", batch="nightly"), a_request("n2", batch="nightly")])
    await queue.submit([a_request("d1", batch="daily"), a_request("x1")])
    await queue.pauses.pause(NIGHTLY, "ann")
    assert [item.id for item in await claim(queue, worker)] == ["d1", "x1"]
    stats = await queue.stats()
    assert stats.num_parked == {NIGHTLY: 2}
    assert stats.counters["queued"] == 2
    assert await audit(queue) == []
    await queue.pauses.resume(NIGHTLY)
    await queue.submit([a_request("x2")])
    assert [item.id for item in await claim(queue, worker)] == ["n1", "n2", "x2"]
    assert (await queue.stats()).num_parked == {}
    assert await audit(queue) == []


async def test_parked_requests_keep_their_order_under_every_kind_of_lane(queue: Queue) -> None:
    for number, order in enumerate(("fcfs", "fair", "fair+sjf", "deadline", "prefix")):
        worker = f"w{number}"
        await queue.register(worker, {}, SchedulingPolicy(order))  # type: ignore[arg-type]
        names = [f"{number}-{n}" for n in range(5)]
        await queue.submit([a_request(name, batch="nightly", max_tokens=9) for name in names])
        await queue.pauses.pause(NIGHTLY, "ann")
        assert await claim(queue, worker) == []
        await queue.pauses.resume(NIGHTLY)
        items = await claim(queue, worker)
        assert [item.id for item in items] == names
        await succeed(queue, worker, items)
    assert await audit(queue) == []


async def test_a_parked_request_can_be_cancelled(queue: Queue) -> None:
    worker = await open_worker(queue)
    await queue.submit([a_request("n1", batch="nightly"), a_request("n2", batch="nightly")])
    await queue.pauses.pause(NIGHTLY, "ann")
    await claim(queue, worker)
    assert await queue.cancel(["n1", "n2"]) == ["queued", "queued"]
    assert (await queue.stats()).num_parked == {}
    assert await audit(queue) == []


async def test_a_late_success_of_a_parked_request_counts(queue: Queue) -> None:
    zombie = await open_worker(queue)
    await queue.submit([a_request("n1", batch="nightly")])
    items = await claim(queue, zombie)
    await queue.release(zombie, items)
    await queue.pauses.pause(NIGHTLY, "ann")
    assert await claim(queue, zombie) == []
    assert await succeed(queue, zombie, items) == [2]
    assert (await queue.stats()).num_parked == {}
    assert await audit(queue) == []


async def test_the_pause_of_a_batch_goes_with_the_batch(queue: Queue) -> None:
    await queue.submit([a_request("n1", batch="nightly")])
    await queue.pauses.pause(NIGHTLY, "ann")
    await queue.cancel(["n1"])
    await queue.seal("nightly", 1)
    assert (await queue.stats()).pauses == {}


async def test_a_paused_queue_has_nothing_due(queue: Queue) -> None:
    """Workers would claim without a pause while a retry is due that no claim may take."""
    worker = await open_worker(queue)
    await queue.submit([a_request("d1", delay_s=60)])
    await make_due(queue, "d1")
    await queue.pauses.pause(WHOLE_QUEUE, "ann")
    assert (await queue.claim(worker, "n1", 1)).next_due_ms is None
    await queue.pauses.resume(WHOLE_QUEUE)
    assert [item.id for item in await claim(queue, worker)] == ["d1"]


async def test_a_resumed_batch_keeps_its_order_over_small_claims(queue: Queue) -> None:
    worker = await open_worker(queue)
    names = [f"n{number:02}" for number in range(50)]
    await queue.submit([a_request(name, batch="nightly") for name in names])
    await queue.pauses.pause(NIGHTLY, "ann")
    assert await claim(queue, worker) == []
    await queue.pauses.resume(NIGHTLY)
    claimed = [item.id for _ in range(10) for item in await claim(queue, worker, 5)]
    assert claimed == names


async def test_a_resumed_batch_keeps_its_order_beside_other_tenants(queue: Queue) -> None:
    """Claims then take less of it than they return to its lane; all requests of one submit have one moment."""
    worker = await open_worker(queue)
    names = [f"n{number}" for number in range(40)]
    await queue.submit([a_request(name, batch="nightly") for name in names])
    await queue.pauses.pause(NIGHTLY, "ann")
    assert await claim(queue, worker) == []
    await queue.submit([a_request(f"new{n}", tenant="default") for n in range(3)])
    await queue.submit(some_requests(100, tenant="globex"))
    await queue.pauses.resume(NIGHTLY)
    order = []
    while items := await claim(queue, worker, 6):
        order += [item.id for item in items if item.record.batch]
        await succeed(queue, worker, items)
    assert order == names
    assert await audit(queue) == []


async def test_a_resumed_batch_runs_at_once_beside_many_paused_ones(queue: Queue) -> None:
    worker = await open_worker(queue)
    scopes = [batch_scope(f"b{n}") for n in range(300)]
    for scope in scopes:
        await queue.pauses.pause(scope, "ann")
    await queue.submit([a_request(f"r{n}", batch=f"b{n}") for n in range(300)])
    while sum((await queue.stats()).num_parked.values()) < 300:
        await claim(queue, worker)
    await queue.pauses.resume(scopes[7])
    assert [item.id for item in await claim(queue, worker)] == ["r7"]
    assert await queue.redis.exists(queue.keys.parked_claimable) == 0
    await queue.pauses.resume(scopes[8])
    await queue.pauses.pause(scopes[8], "ann")
    assert await claim(queue, worker) == []
    assert await audit(queue) == []


@pytest.mark.parametrize("options", [{"lanes": LaneRoom(low=0)}, {"max_suspects": 0}])
async def test_the_doorbell_falls_silent_between_workers_that_may_not_take_what_waits(
    queue: Queue, options: dict[str, Any]
) -> None:
    """One does not understand the fact, and the other has no room in the lane."""
    old, new = await open_worker(queue, "old"), await open_worker(queue, "new")
    await queue.submit(some_requests(3, facts={"!s": "1"}, priority="low"))
    if "max_suspects" in options:
        await claim(queue, new, understands=["s"])
        await queue.crash(new, {})
    await claim(queue, old)
    num_rings = 0
    for _ in range(10):
        assert await claim(queue, new, understands=["s"], **options) == []
        assert await claim(queue, old) == []
        num_rings += await queue.redis.delete(queue.keys.doorbell)
    assert num_rings <= 1
    assert await claim(queue, new, understands=["s"]) != []


@pytest.mark.parametrize(
    "note",
    [
        b'{"by":"ops","reason":NaN}',
        b'{"by":"J\xfcrgen","reason":"x"}',
        b'{"by":"ops","reason":"\xed\xa0\x80"}',
        b'{"by":["a"]}',
        b'{"by":"ops","reason":7}',
        b'["by"]',
        b"ops",
    ],
)
async def test_a_note_that_a_reader_could_not_read_is_refused(queue: Queue, note: bytes) -> None:
    with pytest.raises(ResponseError, match="INVALID note"):
        await queue.scripts.run("pause", NIGHTLY, note)
    assert (await queue.stats()).pauses == {}


async def test_a_note_cannot_set_its_own_time(queue: Queue) -> None:
    await queue.scripts.run("pause", NIGHTLY, '{"by":"Jürgen","at_ms":"now","more":[1]}')
    pause = (await queue.stats()).pauses[NIGHTLY]
    assert (pause.by, pause.reason) == ("Jürgen", "")
    assert pause.at_ms > 1e12


@pytest.mark.parametrize(
    ("note", "expected"),
    [
        (b'{"by":"J\xfcrgen"}', Pause(0, "somebody", '{"by":"J\ufffdrgen"}')),
        (b'{"by":1,"at_ms":"now"}', Pause(0, "somebody", "")),
        (b"[]", Pause(0, "somebody", "")),
        (b'{"by":"ann","at_ms":1e300,"reason":null}', Pause(0, "ann", "")),
    ],
)
async def test_a_note_of_somebody_else_stops_no_reader(
    queue: Queue, note: bytes, expected: Pause
) -> None:
    await queue.redis.hset(queue.keys.pauses, WHOLE_QUEUE, note)
    assert (await queue.stats()).pauses == {WHOLE_QUEUE: expected}
    assert expected.in_words().startswith("since 1970")


async def test_a_pause_sent_again_after_a_lost_reply_is_no_second_one(queue: Queue) -> None:
    for call, expected in (("a", True), ("a", True), ("b", False), ("", False)):
        assert await queue.pauses.pause(NIGHTLY, "ann", call=call) is expected


async def test_the_audit_finds_parked_requests_that_no_claim_would_return(queue: Queue) -> None:
    worker = await open_worker(queue)
    await queue.submit(some_requests(2, batch="nightly"))
    await queue.pauses.pause(NIGHTLY, "ann")
    await claim(queue, worker)
    await queue.redis.srem(queue.keys.parked, NIGHTLY)
    (finding,) = await audit(queue)
    assert (finding.kind, finding.subject) == ("unserved_lane", "parked:batch:nightly")


async def test_a_completed_batch_cannot_be_paused(queue: Queue) -> None:
    await queue.submit([a_request("n1", batch="nightly")])
    await queue.cancel(["n1"])
    await queue.seal("nightly", 1)
    assert not await queue.pauses.pause(NIGHTLY, "ann")
    assert (await queue.stats()).pauses == {}
