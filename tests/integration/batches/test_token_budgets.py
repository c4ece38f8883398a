"""A batch of a tenant without tokens waits until its budget renews, or fails, as the tenant chose."""

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import date
from math import inf
from pathlib import Path
from typing import Any

import pytest
from batches import TENANT, Steps, all_rows, chat, create, open_batches, run
from command_line import SettlingWorker
from queues import claimed_by, counters, outcome
from structlog.testing import capture_logs

from gristmill.producer.batches.batch_service import Batches
from gristmill.producer.batches.lifecycle import advance
from gristmill.producer.budgets import Budgets
from gristmill.producer.noted_queues import note_queue
from gristmill.producer.tenants import Tenant, Tenants
from gristmill.shared.errors import BudgetUsedUp
from gristmill.shared.operations import Settlement, Use
from gristmill.shared.queue import Queue
from gristmill.shared.usage_ledger import DayTokens, Ledger


@pytest.fixture
def batches(queue: Queue, tmp_path: Path) -> Batches:
    return open_batches(queue, tmp_path / "storage")


async def use_tokens(queue: Queue, number: int, *, since_first: bool = False) -> None:
    """Note tokens of the tenant, of today or of the first of the month."""
    today = await Ledger(queue).today()
    day = today.replace(day=1) if since_first else today
    key = queue.keys.usage(day.toordinal() - 719_163)
    value: Any = {f"{TENANT}|m": f"1|{number}|0|0|0"}
    await queue.redis.hset(key, mapping=value)


async def limit(queue: Queue, **fields: Any) -> Tenant:
    tenant, tenants = Tenant(name=TENANT, **fields), Tenants(queue.redis)
    if await tenants.get(TENANT):
        await tenants.change(tenant)
    else:
        await tenants.create(tenant)
    return tenant


async def test_batch_waits_without_a_steward_and_goes_on_when_it_may(
    batches: Batches, queue: Queue
) -> None:
    await limit(queue, tokens_per_day=1000)
    await use_tokens(queue, 1000)
    batch = await create(batches, [chat(f"c{n}") for n in range(20)])
    await run(batches, batch, until=lambda record: record.status == "in_progress")
    with capture_logs() as logs:
        for _ in range(2):
            await advance(batches.store, batch.id, Steps(10))
    waits = [
        (each["batch"], each["tenant"])
        for each in logs
        if each["event"] == "batch.waits_for_budget"
    ]
    assert waits == [(batch.id, TENANT)], "the log says it once, not in each slice"
    assert "submitted" not in await counters(queue)
    assert await batches.store.due.batches("steps") == []
    for shown in (await batches.batch(TENANT, batch.id), (await batches.batches(TENANT)).data[0]):
        assert shown.waiting
        assert shown.waiting.code == "token_budget_used_up"
        assert (
            "used 1,000 of 1,000 tokens (tokens_per_day); the budget renews"
            in shown.waiting.message
        )
    await limit(queue, tokens_per_day=1001)
    assert (await batches.batch(TENANT, batch.id)).waiting is None
    async with SettlingWorker(queue).running():
        ended = await run(batches, batch)
    assert (ended.status, ended.request_counts.completed) == ("completed", 20)


async def test_waiting_batch_can_be_cancelled(batches: Batches, queue: Queue) -> None:
    await limit(queue, tokens_per_day=1)
    await use_tokens(queue, 1)
    batch = await create(batches, [chat(f"c{n}") for n in range(3)])
    await run(batches, batch, until=lambda record: record.status == "in_progress")
    await advance(batches.store, batch.id, Steps(10))
    await batches.cancel(TENANT, batch.id)
    assert [due.batch for due in await batches.store.due.batches("steps")] == [batch.id]
    ended = await run(batches, batch)
    assert (ended.status, ended.request_counts.cancelled) == ("cancelled", 3)


async def test_batch_fails_with_a_row_for_every_line_if_the_tenant_chose_so(
    batches: Batches, queue: Queue
) -> None:
    await limit(queue, tokens_per_month=500, over_budget="fail")
    await use_tokens(queue, 700, since_first=True)
    ended = await run(batches, await create(batches, [chat(f"c{n}") for n in range(20)]))
    assert ended.status == "failed"
    assert ended.errors
    assert ended.errors.data[0].code == "token_budget_used_up"
    assert "used 700 of 500 tokens (tokens_per_month)" in ended.errors.data[0].message
    rows = await all_rows(batches, ended)
    assert len(rows) == 20
    assert {row["error"]["code"] for row in rows} == {"token_budget_used_up"}
    await limit(queue)
    again = await batches.retry_failed(TENANT, ended.id)
    async with SettlingWorker(queue).running():
        ended = await run(batches, again)
    assert (ended.status, ended.request_counts.completed) == ("completed", 20)


async def test_lines_under_way_get_their_answers_when_the_budget_is_used_up(
    batches: Batches, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    await limit(queue, tokens_per_day=1000)
    monkeypatch.setattr("gristmill.producer.batches.lifecycle.execution.LOOK_S", 0.0)
    monkeypatch.setattr("gristmill.producer.batches.lifecycle.line_submitter.room", lambda **_: 8)
    monkeypatch.setattr("gristmill.producer.budgets.FRESH_S", 0.0)
    batch = await create(batches, [chat(f"c{n}") for n in range(50)])
    await run(batches, batch, until=lambda record: record.status == "in_progress")
    await advance(batches.store, batch.id, Steps(1))
    submitted = (await counters(queue))["submitted"]
    assert 0 < submitted < 50
    await use_tokens(queue, 1000)
    async with SettlingWorker(queue).running():
        await run(batches, batch, until=lambda record: record.request_counts.completed == submitted)
    assert (await counters(queue))["submitted"] == submitted


async def test_budget_counts_days_of_this_month(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gristmill.producer.budgets.FRESH_S", 0.0)
    tenant = await limit(queue, tokens_per_month=100)
    budgets = Budgets(queue)
    await use_tokens(queue, 99, since_first=True)
    await budgets.check(tenant)
    await use_tokens(queue, 100)
    with pytest.raises(BudgetUsedUp, match=r"of 100 tokens \(tokens_per_month\); .* renews at .*-01T00"):  # fmt: skip
        await budgets.check(tenant)
    await budgets.check(Tenant(name=TENANT))
    await budgets.check(Tenant(name="other", tokens_per_day=1))


async def test_budget_holds_on_a_day_that_other_tenants_filled(queue: Queue) -> None:
    tenant = await limit(queue, tokens_per_day=100)
    day = (await Ledger(queue).today() - date(1970, 1, 1)).days
    many: dict[Any, Any] = {f"full|m{number}": "1|9|0|9|0" for number in range(10_000)}
    await queue.redis.hset(queue.keys.usage(day), mapping=many)
    (item,) = await claimed_by(queue, "w", tenant=TENANT)
    used = Settlement(
        item.id, item.delivery, "succeeded", outcome(item), 80, 20, usage=Use(TENANT, "m", 0, 0)
    )
    await queue.ack("w", [used])
    with pytest.raises(BudgetUsedUp, match="used 100 of 100 tokens"):
        await Budgets(queue).check(tenant)


async def test_known_tenants_cost_one_call_for_each_queue_and_none_while_fresh(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = Queue(queue.redis, f"{queue.keys.queue}-b")
    await note_queue(queue.redis, second.keys.queue)
    budgets, calls = Budgets(queue), Counter[str]()
    for name in ("read", "_scan"):
        monkeypatch.setattr(DayTokens, name, counted(getattr(DayTokens, name), calls))
    monkeypatch.setattr("gristmill.producer.budgets.FRESH_S", 60.0)
    tenants = [TENANT, *(f"t{number}" for number in range(50))]
    for each in (queue, second):
        await use_tokens(each, 10)
    before = 7 * ((await Ledger(queue).today()).day > 1)  # on an earlier day of the month
    if before:
        await use_tokens(queue, before, since_first=True)
    await asyncio.gather(*map(budgets.use_of, tenants))
    assert calls["read"] <= 4  # those that came while a read went on share the next
    for each in (queue, second):
        await use_tokens(each, 30)
    for is_fresh, expected in ((True, {}), (False, {"read": 2})):
        calls.clear()
        if not is_fresh:
            monkeypatch.setattr(budgets, "_read_s", -inf)
        await asyncio.gather(*map(budgets.use_of, tenants))
        assert calls == expected
    assert (await budgets.use_of(TENANT))[1:] == (60, 60 + before)


def counted(function: Callable[..., Any], calls: Counter[str]) -> Callable[..., Any]:
    """Return a method that counts its calls."""

    def counting(*args: Any) -> Any:
        calls[function.__name__] += 1
        return function(*args)

    return counting


async def test_a_new_model_and_a_new_queue_are_found(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gristmill.producer.budgets.FRESH_S", 0.0)
    budgets, second = Budgets(queue), Queue(queue.redis, f"{queue.keys.queue}-b")
    await use_tokens(queue, 10)
    assert (await budgets.use_of(TENANT)).tokens_today == 10
    key = queue.keys.usage((await Ledger(queue).today() - date(1970, 1, 1)).days)
    await queue.redis.hset(key, mapping={f"{TENANT}|new": "1|5|0|0|0"})
    assert (await budgets.use_of(TENANT)).tokens_today == 15
    await use_tokens(second, 100)
    await note_queue(queue.redis, second.keys.queue)
    assert (await budgets.use_of(TENANT)).tokens_today == 115
    await queue.redis.unlink(key)  # as by a purge
    await queue.redis.hset(key, mapping={f"{TENANT}|x": "1|1|0|0|0", f"{TENANT}|y": "1|1|0|0|0"})
    assert (await budgets.use_of(TENANT)).tokens_today == 102
