"""Dead letters: kept with their bytes for a while, requeued once as a new request."""

from queues import BODY, ERROR, a_request, claim, claimed_by, counters, open_worker, succeed

from gristmill.shared.audit import audit
from gristmill.shared.operations import Limits
from gristmill.shared.queue import Queue
from gristmill.shared.redis_types import AnyRedis

MAX_DEAD_LETTERS, MAX_DEAD_LETTER_BYTES = 100_000, 256 * 2**20


async def die_of(queue: Queue, *ids: str, **fields: object) -> None:
    """Let requests use up their attempts."""
    await queue.submit([a_request(name, max_attempts=1, **fields) for name in ids])
    worker = await open_worker(queue)
    for item in await claim(queue, worker):
        assert await queue.nack(worker, item, 0, ERROR) == "dead_lettered"


async def test_dead_letters_are_listed_newest_first_with_body_and_evidence(queue: Queue) -> None:
    await die_of(queue, "a", "b", "c")
    await queue.redis.zadd(queue.keys.dead_letters, {"b": 9e12})
    letters = await queue.dead_letters.newest(count=2)
    assert [letter.id for letter in letters] == ["b", "c"]
    assert letters[0].record.endswith(BODY)
    assert letters[0].evidence == ERROR
    assert await queue.dead_letters.get("nobody") is None


async def test_requeue_makes_a_new_request_that_names_the_old_one(queue: Queue) -> None:
    await die_of(queue, "old", tenant="t", priority="high", batch="b", reply="r", model="m",
                 prefix="p", prompt_tokens=5, max_tokens=6, metadata={"a": 1})  # fmt: skip
    assert await queue.dead_letters.requeue("old", "new") == "accepted"
    (item,) = await claim(queue, await open_worker(queue, "w"))
    record = item.record
    assert (item.id, item.attempt, record.origin, record.batch) == ("new", 1, "old", "")
    assert (record.tenant, record.priority, record.model) == ("t", "high", "m")
    assert (record.prompt_tokens, record.max_tokens, record.max_attempts) == (5, 6, 1)
    assert (record.metadata, record.body) == (b'{"a":1}', BODY)
    await succeed(queue, "w", [item])
    old, new = await queue.results(["old", "new"])
    assert old is not None
    assert new is not None
    assert (old.status, new.status) == ("failed", "succeeded")
    assert await audit(queue) == []


async def test_an_owned_id_names_tenant_and_queue_as_the_gateway_does(queue: Queue) -> None:
    for dead_id, tenant in (("one", "team-a"), ("two", "team.a"), ("three", "t" * 120)):
        await die_of(queue, dead_id, tenant=tenant)
    owned = await queue.dead_letters.owned_id("one")
    assert owned.startswith("team-a.0-")
    assert owned.endswith(f"@{queue.keys.queue}")
    for dead_id in ("two", "three", "nobody"):
        assert (await queue.dead_letters.owned_id(dead_id)).startswith("0-")


async def test_requeue_happens_once_under_one_new_id(queue: Queue) -> None:
    await die_of(queue, "old")
    codes = [await queue.dead_letters.requeue("old", "new") for _ in range(2)]
    worker = await open_worker(queue)
    await succeed(queue, worker, await claim(queue, worker))
    codes.append(await queue.dead_letters.requeue("old", "new"))
    assert codes == ["accepted", "queued", "done"]
    assert await queue.dead_letters.requeue("old", "newer") == "missing"
    assert (await counters(queue))["requeued"] == 1


async def test_dead_letter_goes_when_its_retention_ends(redis: AnyRedis, queue: Queue) -> None:
    await die_of(queue, "young", "old")
    await redis.zadd(queue.keys.dead_letters, {"old": 1})
    await queue.expire()
    assert [letter.id for letter in await queue.dead_letters.newest()] == ["young"]
    keep_nothing = Queue(redis, queue.keys.queue, Limits(dead_letter_ttl_ms=-1))
    await keep_nothing.expire()
    assert await queue.dead_letters.newest() == []
    assert await audit(queue) == []


async def test_oldest_dead_letters_go_when_there_are_too_many(queue: Queue) -> None:
    for start in range(0, MAX_DEAD_LETTERS, 10_000):
        ids = [f"old-{i}" for i in range(start, start + 10_000)]
        await queue.redis.zadd(
            queue.keys.dead_letters, {name: i + 1 for i, name in enumerate(ids, start)}
        )
        await queue.redis.hset(queue.keys.dead_letter_info, mapping=dict.fromkeys(ids, "{}\n"))
    await die_of(queue, "new")
    assert await queue.redis.zcard(queue.keys.dead_letters) == MAX_DEAD_LETTERS
    assert await queue.redis.hexists(queue.keys.dead_letter_info, "old-0") is False
    assert await queue.redis.hlen(queue.keys.dead_letter_info) == MAX_DEAD_LETTERS


async def letter_bytes(queue: Queue) -> tuple[int, int]:
    """Return the counter, and the bytes that are there."""
    sizes = [len(blob) for blob in await queue.redis.hvals(queue.keys.dead_letter_info)]
    return (await counters(queue)).get("dead_letter_bytes", 0), sum(sizes)


async def test_oldest_dead_letters_go_when_they_have_too_many_bytes(queue: Queue) -> None:
    await die_of(queue, "a", "b", "c")
    counted, there = await letter_bytes(queue)
    assert counted == there
    await queue.redis.hset(queue.keys.stats, "dead_letter_bytes", MAX_DEAD_LETTER_BYTES)
    await die_of(queue, "d")
    assert {letter.id for letter in await queue.dead_letters.newest()} == {"b", "c", "d"}
    assert (await letter_bytes(queue))[0] == MAX_DEAD_LETTER_BYTES


async def test_bytes_of_dead_letters_are_counted_whatever_removes_them(
    redis: AnyRedis, queue: Queue
) -> None:
    await die_of(queue, "a", "b", "c", "d")
    await queue.dead_letters.purge(["a", "unknown"])
    await queue.dead_letters.requeue("b", "new")
    await redis.zadd(queue.keys.dead_letters, {"c": 1})
    await queue.expire()
    counted, there = await letter_bytes(queue)
    assert counted == there > 0
    await redis.hset(queue.keys.stats, "dead_letter_bytes", 2 * MAX_DEAD_LETTER_BYTES)
    await die_of(queue, "e")  # an older script that counts nothing has removed letters
    counted, there = await letter_bytes(queue)
    assert counted == there > 0


async def test_purge_deletes_letters_and_leaves_results(queue: Queue) -> None:
    await die_of(queue, "a", "b")
    assert await queue.dead_letters.purge([]) == 0
    assert await queue.dead_letters.purge(["a", "unknown"]) == 1
    assert await queue.dead_letters.purge(["a"]) == 0
    assert [letter.id for letter in await queue.dead_letters.newest()] == ["b"]
    assert all(await queue.results(["a", "b"]))


async def test_failure_that_no_retry_mends_is_no_dead_letter(queue: Queue) -> None:
    """A rejected request has its record, which says why; only what was given up on is kept."""
    items = await claimed_by(queue, "w")
    await queue.cancel([items[0].id])
    assert await queue.dead_letters.newest() == []
