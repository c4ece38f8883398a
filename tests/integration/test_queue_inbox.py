"""The inbox: plain JSON that anybody may RPUSH becomes a request exactly once, or a dead letter."""

from hashlib import sha1

from queues import (
    BODY,
    a_request,
    claim,
    counters,
    die,
    open_worker,
    some_requests,
    succeed,
)

from gristmill.shared.audit import audit
from gristmill.shared.operations import Limits
from gristmill.shared.queue import Queue
from gristmill.shared.redis_types import AnyRedis
from gristmill.worker.inbox import admit_element

GARBAGE = b'1|\x00\xff{"prompt": \n'


async def push(queue: Queue, *elements: bytes) -> None:
    await queue.redis.rpush(queue.keys.inbox, *elements)


async def admit_all(queue: Queue, worker: str, elements: list[tuple[str, bytes]]) -> None:
    for token, element in elements:
        await queue.admit(worker, token, a_request(f"inbox-{token}", body=element))


async def taken(queue: Queue, worker: str) -> list[tuple[str, bytes]]:
    return list((await queue.claim(worker, "look", 1)).inbox)


async def test_claim_returns_what_lies_in_the_inbox_oldest_first(queue: Queue) -> None:
    elements = [b'{"prompt":"%d %s"}' % (i, b"x" * 100) for i in range(40)]
    await push(queue, *elements)
    worker = await open_worker(queue)
    found = await taken(queue, worker)
    assert [element for _, element in found] == elements[:16]
    assert await taken(queue, worker) == found  # it must admit these first
    await admit_all(queue, worker, found)
    assert [element for _, element in await taken(queue, worker)] == elements[16:32]
    assert (await queue.stats()).num_inbox == 8


async def test_claim_takes_no_more_elements_than_a_few_megabytes(queue: Queue) -> None:
    elements = [b"%d%s" % (i, b"x" * 17 * 2**20) for i in range(3)]
    for element in elements:
        await push(queue, element)
    worker = await open_worker(queue)
    found = await taken(queue, worker)
    assert [element[:1] for _, element in found] == [b"0", b"1"]
    assert (await queue.stats()).num_inbox == 1


async def test_oversize_element_becomes_a_dead_letter_before_any_worker_has_it(
    redis: AnyRedis, queue: Queue
) -> None:
    small = Queue(redis, queue.keys.queue, Limits(max_request_bytes=2**20))
    element = b'{"prompt":"' + b"x" * 2_200_000 + b'"}'
    await push(small, element, BODY)
    worker = await open_worker(small)
    assert await taken(small, worker) == [("2", BODY)]
    letter = await small.dead_letters.get("inbox-1")
    assert letter is not None
    assert (letter.reason, letter.record) == ("too_large", element[:65_536])
    assert letter.evidence == {
        "num_bytes": len(element),
        "num_kept_bytes": 65_536,
        "sha1": sha1(element).hexdigest(),  # noqa: S324  # what Redis offers
        "max_bytes": 2 * 2**20 + 65_536,
    }
    assert await audit(small) == []


async def test_large_garbage_keeps_its_beginning_and_its_evidence(queue: Queue) -> None:
    await push(queue, b"{" * 1_100_000)
    worker = await open_worker(queue)
    ((token, _),) = await taken(queue, worker)
    await queue.admit_garbage(worker, token, "inbox-1", {"error": "it is not JSON"})
    letter = await queue.dead_letters.get("inbox-1")
    assert letter is not None
    assert letter.record == b"{" * 65_536
    assert (letter.evidence["error"], letter.evidence["num_bytes"]) == ("it is not JSON", 1_100_000)


async def test_element_that_takes_the_id_of_others_or_too_much_metadata_becomes_a_dead_letter(
    queue: Queue,
) -> None:
    """Regression: an element named `inbox-<n>` made the innocent element n a dead letter; metadata had no limit."""
    metadata = b'{"body":{"prompt":"a"},"metadata":{"a":"' + b"x" * 65_536 + b'"}}'
    await push(queue, b'{"id":"inbox-3","prompt":"a"}', metadata, b'{"prompt":"b"}')
    worker = await open_worker(queue)
    for token, element in await taken(queue, worker):
        await admit_element(queue, worker, token, element, 2**20)
    letters = {letter.id: letter.evidence["error"] for letter in await queue.dead_letters.newest()}
    assert letters.keys() == {"inbox-1", "inbox-2"}
    assert "its id inbox-3 begins with inbox-" in letters["inbox-1"]
    assert "the limit is 65,536" in letters["inbox-2"]
    assert await queue.status(["inbox-3"]) == [("queued", "")]


async def test_element_is_admitted_exactly_once(queue: Queue) -> None:
    await push(queue, BODY)
    worker = await open_worker(queue)
    ((token, _),) = await taken(queue, worker)
    codes = [await queue.admit(worker, token, a_request("in-1")) for _ in range(3)]
    assert codes == ["accepted", "gone", "gone"]
    assert await taken(queue, worker) == []
    assert [item.id for item in await claim(queue, worker)] == ["in-1"] or await queue.status(
        ["in-1"]
    ) == [("running", worker)]
    assert (await counters(queue))["submitted"] == 1
    assert await audit(queue) == []


async def test_element_stays_in_the_inbox_while_the_queue_is_at_its_caps(
    redis: AnyRedis, queue: Queue
) -> None:
    small = Queue(redis, queue.keys.queue, Limits(max_depth=2))
    await small.submit(some_requests(2))
    await push(small, BODY)
    worker = await open_worker(small)
    assert await taken(small, worker) == []
    assert (await small.stats()).num_inbox == 1
    items = await claim(small, worker) + await claim(small, worker)
    await succeed(small, worker, items)
    held = await small.claim(worker, "look", 1)
    await succeed(small, worker, held.claimed)
    assert len(await taken(small, worker)) == 1


async def test_elements_of_a_dead_worker_are_taken_one_by_one_and_before_the_others(
    queue: Queue,
) -> None:
    elements = [b'{"prompt":"%d %s"}' % (i, b"x" * 100) for i in range(4)]
    await push(queue, *elements[:3])
    await taken(queue, await open_worker(queue, "w1"))
    await die(queue, "w1")
    await push(queue, elements[3])
    worker, order = await open_worker(queue), list[list[bytes]]()
    while found := list((await queue.claim(worker, f"n{len(order)}", 0)).inbox):
        order.append([element for _, element in found])
        await admit_all(queue, worker, found)
    assert order == [[element] for element in elements]
    assert await audit(queue) == []


async def test_element_that_kills_its_worker_again_alone_becomes_a_dead_letter(
    queue: Queue,
) -> None:
    poison, innocent = b'{"prompt":"poison"}', b'{"prompt":"innocent"}'
    await push(queue, innocent, poison)
    for name in ("w1", "w2"):
        for token, element in await taken(queue, await open_worker(queue, name)):
            if element == poison:
                break
            await queue.admit(name, token, a_request("innocent"))
        await die(queue, name)
    (letter,) = await queue.dead_letters.newest()
    assert (letter.reason, letter.crashes, letter.record) == ("engine_killed", 2, poison)
    assert letter.evidence["worker"] == "w2"
    assert (await queue.status(["innocent"]))[0][0] == "queued"
    assert await taken(queue, await open_worker(queue)) == []
    assert await audit(queue) == []


async def test_element_that_was_with_a_dead_worker_and_a_suspect_never_meet(queue: Queue) -> None:
    """A death with both would blame both."""
    await queue.submit([a_request("suspect")])
    await push(queue, BODY)
    assert (await queue.claim(await open_worker(queue, "w1"), "n", 1)).inbox
    await die(queue, "w1")
    first = await queue.claim(await open_worker(queue, "w2"), "n", 9)
    assert (len(first.inbox), len(first.claimed)) == (1, 0)
    second = await queue.claim(await open_worker(queue, "w3"), "n", 9)
    assert (len(second.inbox), [item.id for item in second.claimed]) == (0, ["suspect"])
    await die(queue, "w2")
    assert [letter.reason for letter in await queue.dead_letters.newest()] == ["engine_killed"]
    assert await queue.status(["suspect"]) == [("running", "w3")]


async def test_zombie_cannot_admit_what_went_back(queue: Queue) -> None:
    await push(queue, BODY)
    ((token, _),) = await taken(queue, await open_worker(queue, "zombie"))
    await die(queue, "zombie")
    ((other, _),) = await taken(queue, await open_worker(queue, "w2"))
    assert token != other
    assert await queue.admit("zombie", token, a_request("x")) == "gone"
    assert await queue.admit_garbage("zombie", token, "inbox-x", {}) == "gone"
    assert await queue.admit("w2", other, a_request("x")) == "accepted"


async def test_elements_of_a_worker_that_stops_return_to_where_they_were(queue: Queue) -> None:
    elements = [BODY, GARBAGE]
    await push(queue, *elements)
    worker = await open_worker(queue)
    ((token, _), _) = await taken(queue, worker)
    assert await queue.deregister(worker)
    assert await queue.redis.lrange(queue.keys.inbox, 0, -1) == elements
    assert await queue.admit(worker, token, a_request("late")) == "gone"
    await taken(queue, await open_worker(queue, "w1"))
    await die(queue, "w1")
    ((_, element),) = await taken(queue, await open_worker(queue, "w2"))
    assert await queue.deregister("w2")
    assert (await queue.redis.lrange(queue.keys.inbox_suspects, 0, -1))[0] == element
    assert await audit(queue) == []


async def test_garbage_becomes_a_dead_letter_with_its_bytes(queue: Queue) -> None:
    await push(queue, GARBAGE)
    worker = await open_worker(queue)
    ((token, element),) = await taken(queue, worker)
    evidence = {"message": "it is not UTF-8"}
    assert element == GARBAGE
    assert await queue.admit_garbage(worker, token, f"inbox-{token}", evidence) == "dead_lettered"
    assert await queue.admit_garbage(worker, token, f"inbox-{token}", evidence) == "gone"
    letter = await queue.dead_letters.get(f"inbox-{token}")
    assert letter is not None
    assert (letter.reason, letter.record, letter.evidence) == ("unreadable", GARBAGE, evidence)
    assert await queue.dead_letters.requeue(letter.id, "new") == "missing"
    assert await audit(queue) == []


async def test_element_whose_id_is_taken_by_another_body_becomes_a_dead_letter(
    queue: Queue,
) -> None:
    await queue.submit([a_request("taken")])
    await push(queue, b'{"id":"taken"}')
    worker = await open_worker(queue)
    ((token, element),) = await taken(queue, worker)
    request = a_request("taken", body=b'{"prompt":"other"}')
    assert await queue.admit(worker, token, request) == "dead_lettered"
    letter = await queue.dead_letters.get(f"inbox-{token}")
    assert letter is not None
    assert (letter.reason, letter.record) == ("id_conflict", element)
    assert letter.evidence == {"id": "taken"}


async def test_element_that_is_a_request_already_is_not_run_twice(queue: Queue) -> None:
    await queue.submit([a_request("same")])
    await push(queue, BODY)
    worker = await open_worker(queue)
    ((token, _),) = await taken(queue, worker)
    assert await queue.admit(worker, token, a_request("same")) == "queued"
    assert (await counters(queue))["submitted"] == 1


async def test_claim_sent_twice_hands_out_the_same_elements(queue: Queue) -> None:
    await push(queue, BODY, GARBAGE)
    await queue.submit(some_requests(1))
    worker = await open_worker(queue)
    first, again = await queue.claim(worker, "n", 1), await queue.claim(worker, "n", 1)
    assert list(first.inbox) == list(again.inbox)
    assert len(first.inbox) == 2
