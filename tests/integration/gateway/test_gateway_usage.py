"""`GET /v1/usage` shows a tenant its own use, and nobody else's."""

from datetime import UTC, datetime, timedelta

import httpx
from queues import claim, open_worker, outcome, some_requests

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
    refused = await api.get("/v1/usage", params=days)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "start")
    assert (await api.get("/v1/usage", params={"start": "today"})).status_code == 400
