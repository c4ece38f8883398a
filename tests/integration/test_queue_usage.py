"""The ledger has each request that an engine answered exactly once, under its tenant, model and day."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from queues import (
    a_request,
    claim,
    claimed_by,
    die,
    open_worker,
    outcome,
    some_requests,
    succeed,
)

from gristmill.shared.operations import Settlement, Use
from gristmill.shared.queue import Queue
from gristmill.shared.records import Claimed
from gristmill.shared.scripts import script_source
from gristmill.shared.summed_use import summed_use
from gristmill.shared.usage_ledger import OTHERS, USAGE_DAYS, Ledger, Usage

MODEL = "my-org/my-model"
DAY_MS = 24 * 3600 * 1000


def used(item: Claimed, model: str = MODEL) -> Settlement:
    """Return a success of 100 prompt tokens, 10 of them cached, 20 output tokens and 300 ms."""
    usage = Use(item.record.tenant, model, 10, 300)
    return Settlement(
        item.id, item.delivery, "succeeded", outcome(item), 100, 20, usage=usage, fence=item.fence
    )


def times(number: int) -> Usage:
    """Return the use of so many requests of `used`."""
    return Usage(number, 100 * number, 10 * number, 20 * number, 300 * number)


async def ledger(queue: Queue) -> Mapping[tuple[str, str], Usage]:
    """Return what the ledger of today and yesterday has."""
    book = Ledger(queue)
    today = await book.today()
    rows = await book.rows(today - timedelta(days=1), today)
    return {(row.tenant, row.model): row.usage for row in rows}


async def test_ack_adds_each_request_to_its_tenant_and_model(queue: Queue) -> None:
    await queue.submit([*some_requests(3, tenant="a"), *some_requests(2, tenant="b")])
    worker = await open_worker(queue)
    items = await claim(queue, worker)
    await queue.ack(worker, [used(item) for item in items[:4]])
    await queue.ack(worker, [used(items[4], "another")])
    found = await ledger(queue)
    assert Usage.total(found.values()) == times(5)
    assert found[items[4].record.tenant, "another"] == times(1)
    assert {tenant for tenant, _ in found} == {"a", "b"}


async def test_ack_sent_again_and_an_id_twice_in_one_call_count_once(queue: Queue) -> None:
    items = await claimed_by(queue, "w", 3, tenant="a")
    settlements = [used(item) for item in items]
    assert await queue.ack("w", [*settlements[:2], settlements[0]]) == [1, 1, 0]
    assert await queue.ack("w", settlements) == [0, 0, 1]
    assert await queue.ack("w", settlements) == [0, 0, 0]
    assert await ledger(queue) == {("a", MODEL): times(3)}


async def test_request_that_two_workers_answer_counts_once(queue: Queue) -> None:
    """The first answer comes late, after the request went to another worker."""
    (item,) = await claimed_by(queue, "w", tenant="a")
    await die(queue, "w")
    other = await open_worker(queue)
    (again,) = await claim(queue, other)
    assert await queue.ack("w", [used(item)]) == [2]
    assert await queue.ack(other, [used(again)]) == [0]
    assert await ledger(queue) == {("a", MODEL): times(1)}


async def test_failure_with_an_answer_counts_with_its_tokens(queue: Queue) -> None:
    (item,) = await claimed_by(queue, "w", tenant="a")
    failed = Settlement(
        item.id, item.delivery, "failed", outcome(item), 7, 0, usage=Use("a", "", 0, 5)
    )
    await queue.ack("w", [failed])
    assert await ledger(queue) == {("a", ""): Usage(1, 7, 0, 0, 5)}


async def test_ends_without_an_answer_are_not_in_the_ledger(queue: Queue) -> None:
    await queue.submit(some_requests(3, tenant="a"))
    worker = await open_worker(queue)
    items = await claim(queue, worker)
    await queue.cancel([items[0].id])
    assert await queue.ack(worker, [used(items[0])]) == [0]
    await queue.nack(worker, items[1], 0, {"code": "x", "message": "x"})
    await queue.release(worker, [items[2]])
    assert await ledger(queue) == {}


async def test_settlement_without_use_is_not_in_the_ledger(queue: Queue) -> None:
    items = await claimed_by(queue, "w", 2, tenant="a")
    plain = Settlement(items[0].id, items[0].delivery, "succeeded", outcome(items[0]))
    await queue.ack("w", [plain, used(items[1])])
    await queue.ack("w", [])
    assert await ledger(queue) == {("a", MODEL): times(1)}


async def test_worker_of_an_earlier_version_acks_without_the_ledger(queue: Queue) -> None:
    (item,) = await claimed_by(queue, "w")
    values = used(item).ack_values()
    assert await queue.scripts.run("ack", "w", queue.limits.result_ttl_ms, *values) == [1]
    assert await ledger(queue) == {}


@pytest.mark.parametrize("model", ["a|b|*", "a b/c:d", "ünïcödé", "", "two\nlines", "x" * 300])
async def test_any_name_of_a_model_survives(queue: Queue, model: str) -> None:
    tenant = "A.b_c:/@=+-9"
    (item,) = await claimed_by(queue, "w", tenant=tenant)
    await queue.ack("w", [used(item, model)])
    assert await ledger(queue) == {(tenant, model.replace("\n", " ")[:256]): times(1)}


async def test_large_numbers_stay_exact(queue: Queue) -> None:
    first, second = await claimed_by(queue, "w", 2, tenant="a")
    for item in (first, second):
        large = Settlement(
            item.id, item.delivery, "succeeded", outcome(item), 10**9, 10**9,
            usage=Use("a", MODEL, 10**9, 3 * 10**15),
        )  # fmt: skip
        await queue.ack("w", [large])
    two = Usage(2, 2 * 10**9, 2 * 10**9, 2 * 10**9, 6 * 10**15)
    assert await ledger(queue) == {("a", MODEL): two}


async def test_day_is_that_of_redis_and_has_a_ttl(queue: Queue) -> None:
    (item,) = await claimed_by(queue, "w", tenant="a")
    await queue.ack("w", [used(item)])
    (result,) = await queue.results([item.id])
    assert result is not None
    day = datetime.fromtimestamp(result.finished_ms / 1000, UTC).date()
    rows = await Ledger(queue).rows(day, day)
    assert [(row.day, row.usage) for row in rows] == [(day, times(1))]
    ttl_ms = await queue.redis.pttl(queue.keys.usage(result.finished_ms // DAY_MS))
    assert (USAGE_DAYS - 1) * DAY_MS < ttl_ms <= USAGE_DAYS * DAY_MS


async def test_next_day_has_a_hash_of_its_own(queue: Queue) -> None:
    """Redis' clock cannot be set, so the script runs with another time."""
    source = script_source("ack")
    assert source.count("local time_ms = now_ms()") == 1
    items = await claimed_by(queue, "w", 2, tenant="a")
    for day, item in zip((20_000, 20_001), items, strict=True):
        script = source.replace("= now_ms()", f"= {day * DAY_MS + DAY_MS - 1}")
        values = [*used(item).ack_values(), *summed_use([used(item)])]
        await queue.redis.eval(script, 1, queue.keys.prefix, "w", 60_000, *values)
    first = datetime.fromtimestamp(20_000 * DAY_MS / 1000, UTC).date()
    rows = await Ledger(queue).rows(first, first + timedelta(days=1))
    assert [(row.day, row.usage) for row in rows] == [
        (first, times(1)),
        (first + timedelta(days=1), times(1)),
    ]


async def fill(queue: Queue, number: int) -> None:
    """Add so many tenants with one model each to the ledger of today."""
    today = int((await queue.redis.time())[0]) // 86400
    many: dict[Any, Any] = {f"t{number}|m": "1|0|0|0|0" for number in range(number)}
    await queue.redis.hset(queue.keys.usage(today), mapping=many)


async def test_tenant_has_100_models_a_day(queue: Queue) -> None:
    """A server may answer any name, so one tenant could fill the day."""
    items = await claimed_by(queue, "w", 105, tenant="a")
    await queue.ack("w", [used(item, f"m{number}") for number, item in enumerate(items[:98])])
    await queue.ack("w", [used(item, f"n{number}") for number, item in enumerate(items[98:])])
    items = await claimed_by(queue, "v", 3, tenant="a")
    await queue.ack("v", [used(items[0], "m0"), used(items[1], "p"), used(items[2], "q")])
    (other,) = await claimed_by(queue, "u", tenant="aa")
    await queue.ack("u", [used(other)])
    found = await ledger(queue)
    assert len(found) == 102
    assert found["a", OTHERS] == times(7)
    assert found["a", "m0"] == times(2)
    assert found["aa", MODEL] == times(1)


async def test_full_day_counts_the_models_of_each_new_tenant_together(queue: Queue) -> None:
    known, new = await claimed_by(queue, "w", 2)
    await queue.ack("w", [used(known)])
    await fill(queue, 10_000)
    await queue.ack("w", [used(new, "unknown yet")])
    others = await claimed_by(queue, "v", 4, tenant="other")
    await queue.ack("v", [used(item, f"m{number}") for number, item in enumerate(others)])
    (again,) = await claimed_by(queue, "u")
    await queue.ack("u", [used(again)])
    found = await ledger(queue)
    assert found["default", MODEL] == times(2)
    assert found["default", OTHERS] == times(1)
    assert found["other", OTHERS] == times(4)
    assert len(found) == 10_003


async def test_day_with_20000_fields_counts_new_tenants_together(queue: Queue) -> None:
    await fill(queue, 20_000)
    for tenant in ("a", "b"):
        items = await claimed_by(queue, tenant, 2, tenant=tenant)
        await queue.ack(tenant, [used(item, f"m{number}") for number, item in enumerate(items)])
    found = await ledger(queue)
    assert found[OTHERS, OTHERS] == times(4)
    assert len(found) == 20_001


async def test_models_whose_names_begin_with_the_same_256_characters_count_as_one(
    queue: Queue,
) -> None:
    first, second = await claimed_by(queue, "w", 2, tenant="a")
    await queue.ack("w", [used(first, "x" * 256 + "1"), used(second, "x" * 256 + "2")])
    assert await ledger(queue) == {("a", "x" * 256): times(2)}


async def test_rows_of_one_tenant_are_read_alone(queue: Queue) -> None:
    await fill(queue, 5000)
    (item,) = await claimed_by(queue, "w", tenant="t7")
    await queue.ack("w", [used(item)])
    today = await Ledger(queue).today()
    rows = await Ledger(queue).rows(today, today, "t7")
    assert [(row.model, row.usage.requests) for row in rows] == [("m", 1), (MODEL, 1)]
    assert await Ledger(queue).rows(today, today, OTHERS) == []


async def test_foreign_key_in_its_place_costs_no_answer(queue: Queue) -> None:
    today = int((await queue.redis.time())[0]) // 86400
    await queue.redis.rpush(queue.keys.usage(today), "x")
    items = await claimed_by(queue, "w", 2, tenant="a")
    assert await queue.ack("w", [used(item) for item in items]) == [1, 1]
    assert await ledger(queue) == {("a", MODEL): times(2)}


async def test_numbers_that_a_later_version_appends_stay(queue: Queue) -> None:
    today = int((await queue.redis.time())[0]) // 86400
    await queue.redis.hset(queue.keys.usage(today), f"a|{MODEL}", "1|100|10|20|300|77|8")
    items = await claimed_by(queue, "w", 1, tenant="a")
    await queue.ack("w", [used(item) for item in items])
    value = await queue.redis.hget(queue.keys.usage(today), f"a|{MODEL}")
    assert value == b"2|200|20|40|600|77|8"
    assert await ledger(queue) == {("a", MODEL): times(2)}


async def test_refused_settlements_are_taken_from_the_sums(queue: Queue) -> None:
    """One call has stored, refused and unknown requests of two tenants."""
    await queue.submit([*some_requests(2, tenant="a"), a_request("gone", tenant="b")])
    worker = await open_worker(queue)
    items: Sequence[Claimed] = await claim(queue, worker)
    await queue.cancel(["gone"])
    await succeed(queue, worker, [])
    unknown = Settlement("unknown", 1, "succeeded", b"", 100, 20, usage=Use("b", MODEL, 10, 300))
    codes = await queue.ack(worker, [*(used(item) for item in items), unknown])
    assert sum(codes) == 2
    assert await ledger(queue) == {("a", MODEL): times(2)}
