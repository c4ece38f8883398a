"""Webhooks to a real receiver: their form, signature and retries, and forbidden addresses."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import orjson
import pytest
from aiohttp import web
from standardwebhooks import Webhook
from stewards import TRUE, Place, steward_process

from gristmill.local.processes import free_port
from gristmill.producer.batches.batch_spec import BatchSpec
from gristmill.producer.batches.objects import BatchRecord
from gristmill.producer.steward.deliveries import RETRY_INTERVALS_S
from gristmill.producer.steward.webhooks import Event, NotDelivered, NotWanted, Webhooks
from gristmill.producer.tenants import Tenant, Tenants
from gristmill.shared.keys import DirectoryKeys

SECRET = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
RECORD = BatchRecord(
    id="batch_01", tenant="t", endpoint="/v1/completions", input_file_id="f", completion_window="24h",
    created_at=100, expires_at=200, completed_at=150, status="completed",
)  # fmt: skip
EVENT = Event.of(RECORD)
ALLOWED = frozenset({"127.0.0.1", "localhost"})


@dataclass
class Receiver:
    """Answers with each status of a list in turn, and then always with the last one."""

    statuses: list[int] = field(default_factory=lambda: [200])
    seen: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    port: int = field(default_factory=free_port)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.seen.append((dict(request.headers), await request.read()))
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        return web.Response(status=status, headers={"Location": "/elsewhere"})

    async def hang(self, request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(30)
        return web.Response()

    async def flood(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65_536)

    async def until_seen(self, count: int) -> None:
        deadline = time.monotonic() + 30
        while len(self.seen) < count:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    found = Receiver()
    app = web.Application()
    app.router.add_post("/hook", found.answer)
    app.router.add_route("*", "/elsewhere", found.answer)
    app.router.add_post("/hang", found.hang)
    app.router.add_post("/flood", found.flood)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", found.port).start()
    yield found
    await runner.cleanup()


async def test_an_event_has_openais_form_and_a_standard_signature(receiver: Receiver) -> None:
    await Webhooks(5, ALLOWED).send(receiver.url, SECRET, EVENT)
    ((headers, body),) = receiver.seen
    event = Webhook(SECRET).verify(body, headers)
    assert event == {
        "id": "evt_01_completed", "object": "event", "type": "batch.completed", "created_at": 150,
        "data": {"id": "batch_01"},
    }  # fmt: skip
    assert headers["webhook-id"] == event["id"]


@pytest.mark.parametrize("status", [301, 307, 400, 404, 429, 500, 503])
async def test_other_answers_are_no_delivery_and_redirects_are_not_followed(
    receiver: Receiver, status: int
) -> None:
    receiver.statuses = [status]
    with pytest.raises(NotDelivered, match=str(status)):
        await Webhooks(5, ALLOWED).send(receiver.url, SECRET, EVENT)
    assert len(receiver.seen) == 1


async def test_gone_is_final(receiver: Receiver) -> None:
    receiver.statuses = [410]
    with pytest.raises(NotWanted):
        await Webhooks(5, ALLOWED).send(receiver.url, SECRET, EVENT)


async def test_a_receiver_that_hangs_is_left(receiver: Receiver) -> None:
    url = receiver.url.replace("hook", "hang")
    with pytest.raises(NotDelivered, match="TimeoutError"):
        await Webhooks(0.2, ALLOWED).send(url, SECRET, EVENT)


async def test_an_answer_without_end_is_not_read(receiver: Receiver) -> None:
    url = receiver.url.replace("hook", "flood")
    async with asyncio.timeout(5):
        await Webhooks(30, ALLOWED).send(url, SECRET, EVENT)


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "2130706433", "127.1", "0.0.0.0"],  # noqa: S104
)
async def test_a_private_address_is_not_reached(receiver: Receiver, host: str) -> None:
    url = receiver.url.replace("127.0.0.1", host)
    with pytest.raises(NotDelivered):
        await Webhooks(5).send(url, SECRET, EVENT)
    assert receiver.seen == []


@pytest.mark.parametrize("url", ["ftp://a/", "file:///etc/passwd", "http://", "//a", "http://[::1"])
async def test_an_address_that_is_none_is_final(url: str) -> None:
    with pytest.raises(NotWanted):
        await Webhooks(5).send(url, SECRET, EVENT)


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_*"])
async def test_a_secret_that_is_none_is_final_and_not_told(receiver: Receiver, secret: str) -> None:
    with pytest.raises(NotWanted, match="secret"):
        await Webhooks(5, ALLOWED).send(receiver.url, secret, EVENT)


async def test_what_went_wrong_tells_no_more_of_the_url_than_its_host(receiver: Receiver) -> None:
    url = f"http://user:hush@127.0.0.1:{free_port()}/hush?token=hush"
    with pytest.raises(NotDelivered) as caught:
        await Webhooks(5, ALLOWED).send(url, SECRET, EVENT)
    assert "hush" not in str(caught.value)


async def _end(place: Place, receiver: Receiver) -> str:
    """Create a batch that fails its validation, for a tenant with a webhook; return its id."""
    tenant = orjson.dumps({"name": "t", "webhook_url": receiver.url, "webhook_secret": SECRET})
    queue = place.batches.store.queue
    await queue.redis.set(DirectoryKeys().tenant("t"), tenant)
    file = await place.upload(b"no json\n", "t")
    spec = BatchSpec(input_file_id=file, endpoint="/v1/completions")
    record = await place.batches.create("t", spec)
    return record.id


async def _until_announced(place: Place, batch: str) -> None:
    deadline = time.monotonic() + 30
    while not (await place.batches.store.records.state(batch)).is_announced:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def _next_try_s(place: Place, batch: str) -> float:
    """Return the seconds until the next try, and let it be due now."""
    queue = place.batches.store.queue
    due_key = queue.keys.batches_due("webhooks", "t")
    while await queue.redis.exists(queue.keys.batch_lease(batch)):
        await asyncio.sleep(0.02)
    due_ms = await queue.redis.zscore(due_key, batch)
    await queue.redis.zadd(due_key, {batch: 0})
    return (due_ms or 0) / 1000 - time.time()


async def test_a_failed_delivery_is_repeated_under_the_same_id(
    place: Place, receiver: Receiver
) -> None:
    receiver.statuses = [500, 200]
    allow = {"GRISTMILL_WEBHOOK_ALLOWED_HOSTS": "127.0.0.1"}
    async with steward_process(TRUE, place.url, place.queue, place.folder, **allow) as steward:
        batch = await _end(place, receiver)
        await steward.until("webhook.postponed", batch=batch, delay_s=30)
        assert not (await place.batches.store.records.state(batch)).is_announced
        assert await _next_try_s(place, batch) > 20
        await _until_announced(place, batch)
        await steward.until("webhook.delivered", batch=batch)
        (first, _), (second, body) = receiver.seen
        assert first["webhook-id"] == second["webhook-id"]
        assert Webhook(SECRET).verify(body, second)["type"] == "batch.failed"
        assert SECRET not in steward.log.read_text()
        assert "/hook" not in steward.log.read_text()


async def test_a_receiver_that_is_gone_is_told_no_more(place: Place, receiver: Receiver) -> None:
    receiver.statuses = [410]
    allow = {"GRISTMILL_WEBHOOK_ALLOWED_HOSTS": "127.0.0.1"}
    async with steward_process(TRUE, place.url, place.queue, place.folder, **allow) as steward:
        batch = await _end(place, receiver)
        await steward.until("webhook.given_up", batch=batch)
        await _until_announced(place, batch)


async def test_the_last_try_gives_up(place: Place, receiver: Receiver) -> None:
    receiver.statuses = [500]
    allow = {"GRISTMILL_WEBHOOK_ALLOWED_HOSTS": "127.0.0.1"}
    async with steward_process(TRUE, place.url, place.queue, place.folder, **allow) as steward:
        batch = await _end(place, receiver)
        for delay_s in RETRY_INTERVALS_S:
            await steward.until("webhook.postponed", batch=batch, delay_s=delay_s)
            assert await _next_try_s(place, batch) > delay_s / 2
        await steward.until("webhook.given_up", batch=batch)
        await _until_announced(place, batch)
        assert len(receiver.seen) == 8


async def test_a_private_receiver_is_not_called_by_a_steward(
    place: Place, receiver: Receiver
) -> None:
    async with steward_process(TRUE, place.url, place.queue, place.folder) as steward:
        batch = await _end(place, receiver)
        row = await steward.until("webhook.postponed", batch=batch)
        assert "GRISTMILL_WEBHOOK_ALLOWED_HOSTS" in row["reason"]
        assert receiver.seen == []


async def test_a_tenant_without_a_webhook_is_done(place: Place) -> None:
    async with steward_process(TRUE, place.url, place.queue, place.folder):
        file = await place.upload(b"no json\n")
        spec = BatchSpec(input_file_id=file, endpoint="/v1/completions")
        record = await place.batches.create("default", spec)
        await _until_announced(place, record.id)


async def test_receivers_that_hang_hold_up_neither_batches_nor_webhooks_of_others(
    place: Place, receiver: Receiver
) -> None:
    """A server that never answers has a few calls at a time; each would last a minute."""
    environment = {
        "GRISTMILL_WEBHOOK_ALLOWED_HOSTS": "127.0.0.1",
        "GRISTMILL_WEBHOOK_TIMEOUT_S": "60",
    }
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/hook"
        tenant = Tenant(name="slow", webhook_url=url, webhook_secret=SECRET)
        await Tenants(place.batches.store.queue.redis).create(tenant)
        file = await place.upload(b"no json\n", "slow")
        spec = BatchSpec(input_file_id=file, endpoint="/v1/completions")
        slow = [await place.batches.create("slow", spec) for _ in range(10)]
        async with steward_process(
            TRUE, place.url, place.queue, place.folder, **environment
        ) as steward:
            for record in slow:
                await steward.until("job.finished", batch=record.id)
            batch = await _end(place, receiver)
            await steward.until("webhook.delivered", batch=batch)
            assert len(steward.events("webhook.postponed")) == 0
            announcing = [
                row for row in steward.events("job.started") if row["job"].startswith("announce-")
            ]
            assert len(announcing) == 4 + 1, "of the slow tenant and of the other"
