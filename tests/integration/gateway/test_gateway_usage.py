"""`GET /v1/usage` shows a tenant its own use, and nobody else's."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import httpx
from gateways import RunningGateway
from queues import claim, open_worker, outcome, some_requests

from gristmill.producer.budgets import Budgets
from gristmill.shared.operations import Settlement, Use
from gristmill.shared.queue import Queue


async def use(queue: Queue, tenant: str, number: int) -> None:
    """Let a tenant use 100 prompt and 20 output tokens and 3 s a request."""
    await queue.submit(some_requests(number, tenant=tenant))
    worker = await open_worker(queue)
    for item in await claim(queue, worker):
        used = Settlement(
            item.id, item.delivery, "succeeded", outcome(item), 100, 20, usage=Use(tenant, "m", 10, 3000)
        )  # fmt: skip
        await queue.ack(worker, [used])


async def test_tenant_sees_its_own_use(api: httpx.AsyncClient, queue: Queue) -> None:
    await use(queue, "acme", 2)
    await use(queue, "other", 1)
    answer = (await api.get("/v1/usage")).json()
    assert answer == {
        "object": "list",
        "data": [
            {
                "object": "usage", "day": str(datetime.now(UTC).date()), "model": "m", "requests": 2,
                "prompt_tokens": 200, "cached_tokens": 20, "output_tokens": 40, "device_seconds": 6.0, "cost": None,
            }
        ],
    }  # fmt: skip


async def test_range_of_days_is_checked(api: httpx.AsyncClient, queue: Queue) -> None:
    await use(queue, "acme", 1)
    today = datetime.now(UTC).date()
    days = {"start": str(today - timedelta(days=30)), "end": str(today - timedelta(days=1))}
    assert (await api.get("/v1/usage", params=days)).json()["data"] == []
    days = {"start": str(today), "end": str(today - timedelta(days=1))}
    await refuses(api, days, "start", f"start {today} is after end {days['end']}; swap them")
    days = {"start": "2026-01-01", "end": "2027-11-30"}
    too_long = "start 2026-01-01 to end 2027-11-30 is 699 days; the limit is 400; ask for fewer"
    await refuses(api, days, "start", too_long)
    for text in ("yesterday", "0", "2026-02-30"):
        await refuses(api, {"end": text}, "end", "end: this is no day; write YYYY-MM-DD")


async def refuses(
    api: httpx.AsyncClient, days: Mapping[str, str], param: str, message: str
) -> None:
    refused = await api.get("/v1/usage", params=days)
    error = refused.json()["error"]
    assert (refused.status_code, error["param"], error["message"]) == (400, param, message)


async def test_request_over_a_token_budget_gets_a_429(
    gateway: RunningGateway, queue: Queue
) -> None:
    key = await gateway.add_tenant("thrifty", tokens_per_day=240, tokens_per_month=1000)
    await use(queue, "thrifty", 1)
    body = {"prompt": "hi"}
    async with gateway.caller(key) as caller:
        usage = (await caller.get("/v1/tenant")).json()["usage"]
        assert (usage["tokens_today"], usage["tokens_this_month"]) == (120, 120)
        known = {"Idempotency-Key": "known"}
        assert (await caller.post("/v1/requests", json=body, headers=known)).status_code == 202
        await queue.cancel(["thrifty.known"])
        await use(queue, "thrifty", 1)
        gateway.gateway.batches.store.budgets = Budgets(queue)
        refused = await caller.post("/v1/requests", json=body)
        again = await caller.post("/v1/requests", json=body, headers=known)
        chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        live = await caller.post("/v1/chat/completions", json=chat)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (429, "insufficient_quota")
    assert "used 240 of 240 tokens (tokens_per_day); the budget renews at" in error["message"]
    assert refused.headers["x-should-retry"] == "false"
    assert again.status_code == 200  # its end
    assert (live.status_code, live.json()["error"]["code"]) == (429, "insufficient_quota")
