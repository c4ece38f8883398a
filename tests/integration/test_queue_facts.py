"""A record can gain facts: old workers carry them along, and may not get what they must understand."""

import pytest
from queues import ERROR, a_request, claim, claimed_by, die, open_worker, succeed
from redis.exceptions import ResponseError

from gristmill.shared.audit import audit
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.operations import ClaimTerms, LaneRoom, SuspectRoom
from gristmill.shared.queue import Queue

TRACE = {"trace": "00-4bf92f35-01", "budget": "7"}
STREAM = {"!stream": "1"}


async def test_unknown_facts_survive_release_retry_crash_and_reap(queue: Queue) -> None:
    items = await claimed_by(queue, "w1", 2, facts=TRACE, max_attempts=9)
    assert items[0].record.facts == TRACE
    await queue.release("w1", items)
    items = await claim(queue, "w1")
    await queue.nack("w1", items[0], 0, ERROR)
    items = await claim(queue, "w1")
    await queue.crash("w1", {})
    await claim(queue, "w1", max_suspects=2)
    await die(queue, "w1")
    (item, *_) = await claim(queue, await open_worker(queue))
    assert item.record.facts == TRACE


async def test_unknown_facts_survive_a_dead_letter_and_its_requeue(queue: Queue) -> None:
    items = await claimed_by(queue, "w1", facts=TRACE | STREAM, max_attempts=1)
    assert items == []  # w1 does not understand stream
    items = await claim(queue, "w1", understands=["stream"])
    await queue.nack("w1", items[0], 0, ERROR)
    assert await queue.dead_letters.requeue(items[0].id, "again") == "accepted"
    (again,) = await claim(queue, "w1", understands=["stream"])
    assert again.record.facts == TRACE | STREAM
    assert again.record.origin == items[0].id


async def test_a_request_waits_for_a_worker_that_understands_it(queue: Queue) -> None:
    old, new = await open_worker(queue), await open_worker(queue)
    await queue.submit(
        [a_request("s1", facts=STREAM), a_request("x1"), a_request("s2", facts=STREAM)]
    )
    assert [item.id for item in await claim(queue, old)] == ["x1"]
    assert (await queue.stats()).num_parked == {"facts:stream": 2}
    assert await audit(queue) == []
    items = await claim(queue, new, understands=["stream", "trace"])
    assert [item.id for item in items] == ["s1", "s2"]
    await succeed(queue, new, items)
    assert await audit(queue) == []


async def test_all_required_facts_must_be_understood(queue: Queue) -> None:
    worker = await open_worker(queue)
    await queue.submit([a_request("r1", facts={"!a": "1", "b": "2", "!c": "3"})])
    assert await claim(queue, worker, understands=["a"]) == []
    assert (await queue.stats()).num_parked == {"facts:a,c": 1}
    assert len(await claim(queue, worker, understands=["c", "a"])) == 1


@pytest.mark.parametrize(
    "facts", [{"A": "1"}, {"a b": "1"}, {"": "1"}, {"a": "1|b=2"}, {"a": "é"}, {"a": "1" * 600}]
)
async def test_a_fact_of_another_form_is_refused(queue: Queue, facts: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="fact"):
        await queue.submit([a_request(facts=facts)])


@pytest.mark.parametrize("facts", ["|", "|a", "|a=1|", "|A=1", "|!=1", "|a=1|b", "|a=\x01"])
async def test_the_script_refuses_other_text_after_the_header(queue: Queue, facts: str) -> None:
    values = list(a_request().submit_values())
    values[6] = str(values[6]) + facts
    with pytest.raises(ResponseError, match="INVALID request 1"):
        await queue.scripts.run("submit", 10, 10**6, *values)


# -- lanes -------------------------------------------------------------------------------------------


async def test_a_claim_may_ask_for_urgent_requests_only(queue: Queue) -> None:
    worker = await open_worker(queue)
    await queue.submit(
        [a_request("n"), a_request("l", priority="low"), a_request("h", priority="high")]
    )
    assert [i.id for i in await claim(queue, worker, lanes=LaneRoom(normal=0, low=0))] == ["h"]
    assert await claim(queue, worker, lanes=LaneRoom(normal=0, low=0)) == []
    assert [i.id for i in await claim(queue, worker, lanes=LaneRoom(high=0))] == ["n", "l"]


async def test_a_lane_tells_whether_it_has_requests(queue: Queue) -> None:
    worker = await open_worker(queue)
    await queue.submit([a_request("n")])
    assert not await queue.has_waiting("high")
    await queue.submit([a_request("h", priority="high")])
    assert await queue.has_waiting("high")
    await claim(queue, worker, lanes=LaneRoom(normal=0, low=0))
    assert not await queue.has_waiting("high")
    assert await queue.has_waiting("normal")


async def test_a_claim_may_bound_each_lane(queue: Queue) -> None:
    worker = await open_worker(queue)
    for priority in ("high", "normal", "low"):
        await queue.submit([a_request(f"{priority}-{n}", priority=priority) for n in range(40)])
    items = await claim(queue, worker, lanes=LaneRoom(high=35, normal=2, low=1))
    lanes = [item.record.priority for item in items]
    assert lanes == ["high"] * 35 + ["normal"] * 2 + ["low"]
    assert await audit(queue) == []


async def test_lanes_do_not_bound_suspects(queue: Queue) -> None:
    await claimed_by(queue, "w1", 2)
    await die(queue, "w1")
    worker = await open_worker(queue)
    none = LaneRoom(0, 0, 0)
    claimed = await queue.claim(worker, "n", 9, ClaimTerms(suspects=SuspectRoom(2), lanes=none))
    assert len(claimed.claimed) == 2


@pytest.mark.parametrize(
    "facts",
    [
        f"|{'n' * 33}=1",
        f"|!{'n' * 33}=1",
        f"|name={'v' * 513}",
        "".join(f"|n{n}={'v' * 300}" for n in range(4)),
    ],
)
async def test_facts_beyond_their_limits_are_refused(queue: Queue, facts: str) -> None:
    values = list(a_request().submit_values())
    values[6] = f"{values[6]!s}{facts}"
    with pytest.raises(ResponseError, match="INVALID request 1"):
        await queue.scripts.run("submit", 9, 9999, *values)
