"""Events of streamed requests: only the holder appends, in order; a stream has a cap and a TTL."""

import pytest
from queues import a_request, claim, claimed_by, die, open_worker, succeed

from gristmill.shared.audit import audit
from gristmill.shared.event_streams import START, Append, Entry, stream_fact, stream_options
from gristmill.shared.queue import Queue
from gristmill.shared.records import Claimed

STREAM = stream_fact({})
TTL_MS, MAX_BYTES = 60_000, 1000


async def append(
    queue: Queue,
    worker: str,
    item: Claimed,
    number: int,
    events: bytes = b"data: x\n\n",
    ending: str = "",
    max_bytes: int = MAX_BYTES,
) -> int:
    appends = [Append(item, number, events, ending)]
    (code,) = await queue.events.append(worker, appends, TTL_MS, max_bytes)
    return code


def test_fact_names_the_true_options_that_the_engine_knows() -> None:
    assert stream_options({"other": "1"}) is None
    assert stream_options(stream_fact({})) == {}
    options = {"include_usage": True, "continuous_usage_stats": False, "include_obfuscation": True}
    assert stream_options(stream_fact(options)) == {"include_usage": True}


async def test_entries_are_read_in_the_order_of_delivery_and_number(queue: Queue) -> None:
    items = await claimed_by(queue, "w", 2, facts=STREAM)
    assert items[0].record.facts == STREAM
    first, second = items
    appends = [
        Append(first, 1, b"data: a\n\n", ""),
        Append(second, 1, b"data: b\n\n", "succeeded"),
        Append(first, 2, b"data: c\n\n", ""),
    ]
    assert await queue.events.append("w", appends, TTL_MS, MAX_BYTES) == [1, 1, 1]
    found = await queue.events.read({first.id: START, second.id: START, "unknown": START})
    assert found == {
        first.id: [Entry(1, 1, b"data: a\n\n", ""), Entry(1, 2, b"data: c\n\n", "")],
        second.id: [Entry(1, 1, b"data: b\n\n", "succeeded")],
    }
    assert await queue.events.read({first.id: "1-1"}) == {
        first.id: [Entry(1, 2, b"data: c\n\n", "")]
    }
    assert await queue.events.rest(first.id, "1-1") == found[first.id][1:]
    assert await queue.events.read({first.id: "1-2"}) == {}
    assert await audit(queue) == []


async def test_call_whose_reply_was_lost_appends_once(queue: Queue) -> None:
    (item,) = await claimed_by(queue, "w", facts=STREAM)
    assert [await append(queue, "w", item, number) for number in (1, 2, 2, 1, 3)] == [1] * 5
    assert [entry.number for entry in await queue.events.rest(item.id)] == [1, 2, 3]


async def test_worker_that_does_not_hold_the_request_appends_nothing(queue: Queue) -> None:
    (item,) = await claimed_by(queue, "w", facts=STREAM)
    assert await append(queue, "other", item, 1) == 0
    assert await append(queue, "w", item, 1) == 1
    await die(queue, "w")
    assert await append(queue, "w", item, 2) == 0
    (again,) = await claim(queue, await open_worker(queue, "w2"))
    assert await append(queue, "w2", again, 1) == 1
    assert await append(queue, "w", item, 3) == 0
    assert [entry.position for entry in await queue.events.rest(item.id)] == ["1-1", "2-1"]
    await succeed(queue, "w2", [again])
    assert await append(queue, "w2", again, 2) == 0


async def test_same_worker_appends_nothing_for_an_earlier_delivery(queue: Queue) -> None:
    (item,) = await claimed_by(queue, "w", facts=STREAM)
    await queue.release("w", [item])
    (again,) = await claim(queue, "w")
    assert await append(queue, "w", item, 1) == 0
    assert await append(queue, "w", again, 1) == 1


async def test_stream_over_its_cap_ends_by_name_and_keeps_what_it_has(queue: Queue) -> None:
    (item,) = await claimed_by(queue, "w", facts=STREAM)
    event = b"data: " + b"x" * 40 + b"\n\n"
    codes = [await append(queue, "w", item, number, event, max_bytes=100) for number in (1, 2, 3)]
    assert codes == [1, 1, 2]
    entries = await queue.events.rest(item.id)
    assert [entry.events for entry in entries] == [event, event, b""]
    assert [entry.ending for entry in entries] == ["", "", "stream_too_long"]


async def test_cap_counts_the_events_of_all_deliveries(queue: Queue) -> None:
    (item,) = await claimed_by(queue, "w", facts=STREAM)
    assert await append(queue, "w", item, 1, b"x" * 90, max_bytes=100) == 1
    await queue.release("w", [item])
    (again,) = await claim(queue, "w")
    assert await append(queue, "w", again, 1, b"x" * 10, max_bytes=100) == 1
    assert await append(queue, "w", again, 2, b"x", max_bytes=100) == 2


async def test_new_request_with_the_id_of_an_old_one_begins_a_new_stream(queue: Queue) -> None:
    (item,) = await claimed_by(queue, "w", facts=STREAM)
    await append(queue, "w", item, 1, b"data: old\n\n", "succeeded")
    await succeed(queue, "w", [item])
    await queue.redis.unlink(queue.keys.result(item.id))
    await queue.submit([a_request(item.id, facts=STREAM)])
    assert await queue.events.rest(item.id) == []
    (again,) = await claim(queue, "w")
    assert await append(queue, "w", again, 1, b"data: new\n\n") == 1
    assert [entry.events for entry in await queue.events.rest(item.id)] == [b"data: new\n\n"]
    await queue.submit([a_request(item.id, facts=STREAM)])
    assert len(await queue.events.rest(item.id)) == 1


@pytest.mark.parametrize("name", ["9-1", "1-1"])
async def test_stream_with_foreign_entries_fails_alone(queue: Queue, name: str) -> None:
    first, bad, last = await claimed_by(queue, "w", 3, facts=STREAM)
    key = queue.keys.events(bad.id)
    await queue.redis.xadd(key, {"a": "b"}, id=name)
    appends = [Append(item, 2, b"data: x\n\n", "") for item in (first, bad, last)]
    assert await queue.events.append("w", appends, TTL_MS, MAX_BYTES) == [1, 3, 1]
    found = await queue.events.read({item.id: START for item in (first, bad, last)})
    assert [len(found[item.id]) for item in (first, last)] == [1, 1]
    assert [entry.events for entry in found[bad.id]] == [b""]


async def test_each_append_renews_the_ttl(queue: Queue) -> None:
    (item,) = await claimed_by(queue, "w", facts=STREAM)
    key = queue.keys.events(item.id)
    await append(queue, "w", item, 1)
    assert TTL_MS - 5000 < await queue.redis.pttl(key) <= TTL_MS
    await queue.redis.pexpire(key, 9000)
    await append(queue, "w", item, 2)
    assert await queue.redis.pttl(key) > 9000


async def test_key_of_a_wrong_type_is_moved_away(queue: Queue) -> None:
    (item,) = await claimed_by(queue, "w", facts=STREAM)
    await queue.redis.set(queue.keys.events(item.id), b"mine")
    assert await append(queue, "w", item, 1) == 1
    assert len(await queue.events.rest(item.id)) == 1
