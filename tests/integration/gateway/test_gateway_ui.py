"""The gateway's page: sign-in, CSRF, headers, escaping, requeue, content on request only, live events."""

import asyncio
import re
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import orjson
import pytest
from click.testing import CliRunner, Result
from gateways import RunningGateway, gateway_settings, problem, running_gateway
from queues import ERROR, a_request, claim, open_worker, some_requests
from structlog.testing import capture_logs

from gristmill.local.redis_server import running_server
from gristmill.producer.admins import Admins
from gristmill.producer.commands.admin import admin as command
from gristmill.producer.gateway.ui import live_pages, page_route, page_sessions
from gristmill.producer.gateway.ui.live_pages import LivePages
from gristmill.producer.gateway.ui.page_content import LETTERS_A_PAGE
from gristmill.producer.gateway.ui.private_texts import MAX_INDENTED_BYTES
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.queue import Queue

PAGES = ("queues", "workers", "batches", "request", "dead", "tenants")
EVIL = "<script>alert(1)</script>"
EVENTS = {"Accept": "text/event-stream"}


def token_in(page: str) -> str:
    found = re.search(r'name="csrf" value="([^"]+)"', page)
    assert found
    return found[1]


async def sign_in(client: httpx.AsyncClient, key: str) -> httpx.Response:
    form = (await client.get("/ui/login")).text
    return await client.post("/ui/login", data={"csrf": token_in(form), "key": key})


@pytest.fixture
async def admin_key(queue: Queue) -> str:
    return await Admins(queue.redis).create("ann")


@pytest.fixture
async def ui(gateway: RunningGateway, admin_key: str) -> AsyncIterator[httpx.AsyncClient]:
    """A browser of somebody who has signed in."""
    async with gateway.caller() as client:
        assert (await sign_in(client, admin_key)).status_code == 303
        yield client


async def dead_letter(
    queue: Queue, dead_id: str, body: bytes = b'{"prompt":"secret"}', **fields: str
) -> None:
    await queue.submit([a_request(dead_id, body=body, max_attempts=1, **fields)])
    worker = await open_worker(queue)
    (item,) = await claim(queue, worker)
    await queue.nack(worker, item, 0, ERROR | {"message": EVIL})


async def test_every_page_needs_a_session(gateway: RunningGateway, admin_key: str) -> None:
    tenant_key = await gateway.add_tenant("acme")
    for key in ("", tenant_key, admin_key):
        async with gateway.caller(key) as client:
            for page in PAGES:
                answer = await client.get(f"/ui/{page}")
                assert (answer.status_code, answer.headers["location"]) == (303, "/ui/login")
            assert (await client.get("/ui/queues", headers=EVENTS)).status_code == 401
            assert (await client.post("/ui/requeue", data={"subject": "q/x"})).status_code == 401


async def test_only_an_admin_key_signs_in(gateway: RunningGateway, queue: Queue) -> None:
    key, tenant_key = await Admins(queue.redis).create("ann"), await gateway.add_tenant("acme")
    async with gateway.caller() as client:
        for wrong in ("", "x", tenant_key, key[:-1]):
            assert (await sign_in(client, wrong)).status_code == 403
        answer = await sign_in(client, key)
        assert answer.headers["location"] == "/ui/queues"
        cookie = answer.headers["set-cookie"]
        assert all(word in cookie for word in ("HttpOnly", "SameSite=strict", "Path=/ui"))
    async with gateway.caller(key) as api:  # an admin key is no API key
        assert (await api.get("/v1/tenant")).status_code == 401


async def test_cookie_is_secure_behind_https(gateway: RunningGateway) -> None:
    async with gateway.caller(**{"X-Forwarded-Proto": "https"}) as client:
        assert "Secure" in (await client.get("/ui/login")).headers["set-cookie"]


async def test_sign_in_needs_its_token_and_comes_from_no_other_site(
    gateway: RunningGateway, admin_key: str
) -> None:
    async with gateway.caller() as client:
        form = (await client.get("/ui/login")).text
        data = {"csrf": token_in(form), "key": admin_key}
        assert (await client.post("/ui/login", data=data | {"csrf": "x"})).status_code == 403
        evil = {"Origin": "https://evil.example"}
        assert (await client.post("/ui/login", data=data, headers=evil)).status_code == 403
    async with gateway.caller() as stranger:  # without the cookie of the form
        assert (await stranger.post("/ui/login", data=data)).status_code == 403


async def test_tries_to_sign_in_are_limited(
    gateway: RunningGateway, admin_key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_sessions, "LOGINS_A_MINUTE", 2)
    async with gateway.caller() as client:
        codes = [(await sign_in(client, "wrong")).status_code for _ in range(2)]
        assert codes == [403, 403]
        assert (await sign_in(client, admin_key)).status_code == 429


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::"),
        ("no address", "unknown"),
    ],
)
def test_tries_count_by_host(address: str, counted: str) -> None:
    assert page_sessions._network(address) == counted


async def test_a_form_of_many_fields_is_refused_on_a_page(gateway: RunningGateway) -> None:
    async with gateway.caller() as client:
        answer = await client.post("/ui/login", data={f"field-{n}": "" for n in range(21)})
    assert (answer.status_code, "content-security-policy" in answer.headers) == (400, True)


async def test_a_page_waits_a_short_time_for_a_redis_that_hangs(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_route, "REDIS_RETRY_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        async with (
            running_gateway(gateway_settings(url, queue, tmp_path)) as gateway,
            gateway.caller(Cookie="gristmill_session=x") as client,
        ):
            answer = await client.get("/ui/queues")
    assert answer.status_code == 503
    assert "Redis does not answer in time" in answer.text.replace("&#39;", "'")


async def test_every_answer_has_the_headers(ui: httpx.AsyncClient) -> None:
    for path in (*PAGES, "login", "nothing", "static/ui.js", "static/other", "batch?id=x"):
        answer = await ui.get(f"/ui/{path}")
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["referrer-policy"] == "same-origin"
        assert answer.headers["cache-control"] == ("no-cache" if "ui.js" in path else "no-store")
        assert "://" not in answer.text.replace("http://www.w3.org/2000/svg", "")


async def test_a_revoked_key_and_a_sign_out_end_the_session(
    ui: httpx.AsyncClient, queue: Queue
) -> None:
    page = (await ui.get("/ui/queues")).text
    cookies = httpx.Cookies(ui.cookies)
    assert (await ui.post("/ui/logout", data={"csrf": "wrong"})).status_code == 403
    assert (await ui.post("/ui/logout", data={"csrf": token_in(page)})).status_code == 303
    ui.cookies = cookies  # a copy of the cookie is worth nothing after the sign-out
    assert (await ui.get("/ui/queues")).status_code == 303
    admins = Admins(queue.redis)
    await sign_in(ui, await admins.create("bob"))
    assert (await ui.get("/ui/queues")).status_code == 200
    assert await admins.revoke("bob")
    assert (await ui.get("/ui/queues")).status_code == 303


async def test_admin_keys_have_unique_allowed_names(queue: Queue) -> None:
    admins = Admins(queue.redis)
    await admins.create("ann")
    for name in ("ann", "", "a b", "x" * 65):
        with pytest.raises(InvalidRequest):
            await admins.create(name)
    assert [each.name for each in await admins.list()] == ["ann"]
    assert not await admins.revoke("bob")


async def test_texts_of_others_are_escaped(ui: httpx.AsyncClient, queue: Queue) -> None:
    await queue.register(f"w-{EVIL}", {"models": EVIL, "host": EVIL, "device": EVIL})
    await queue.submit([a_request("r", model=EVIL, tenant="acme", metadata={"x": EVIL})])
    for path in ("queues", "workers", "request?id=r", f"request?id={EVIL}", "dead"):
        page = (await ui.get(f"/ui/{path}")).text
        assert EVIL not in page
    assert "&lt;script&gt;" in (await ui.get("/ui/workers")).text


async def test_dead_letter_shows_evidence_and_is_requeued(
    ui: httpx.AsyncClient, queue: Queue
) -> None:
    await dead_letter(queue, "d")
    page = (await ui.get("/ui/dead")).text
    assert "boom" not in page
    assert "&lt;script&gt;" in page
    assert EVIL not in page
    assert "secret" not in page
    subject = {"subject": f"{queue.keys.queue}/d"}
    assert (await ui.post("/ui/requeue", data=subject)).status_code == 403
    right = subject | {"csrf": token_in(page)}
    with capture_logs() as logs:
        answer = await ui.post("/ui/requeue", data=right)
    (line,) = [each for each in logs if each["event"] == "dead_letter.requeued"]
    assert (line["admin"], line["id"]) == ("ann", "d")
    new_page = (await ui.get(answer.headers["location"])).text
    assert "Requeued from" in new_page
    assert (await ui.post("/ui/requeue", data=right)).status_code == 404
    assert (await queue.stats()).counters["queued"] == 1


async def test_the_owner_can_read_a_requeued_request(
    gateway: RunningGateway, ui: httpx.AsyncClient, queue: Queue
) -> None:
    key = await gateway.add_tenant("acme")
    await dead_letter(queue, "d", tenant="acme")
    form = {"subject": f"{queue.keys.queue}/d", "csrf": token_in((await ui.get("/ui/dead")).text)}
    answer = await ui.post("/ui/requeue", data=form)
    new_id = answer.headers["location"].partition("id=")[2]
    for caller_key, code in ((key, 200), (await gateway.add_tenant("other"), 404)):
        async with gateway.caller(caller_key) as api:
            assert (await api.get(f"/v1/requests/{new_id}")).status_code == code


async def test_prompt_and_answer_show_only_when_asked_for(
    ui: httpx.AsyncClient, queue: Queue
) -> None:
    await queue.submit([a_request("r", body=b'{"prompt":"secret <b>"}')])
    page = (await ui.get("/ui/request?id=r")).text
    assert "secret" not in page
    form = {"csrf": token_in(page), "subject": f"{queue.keys.queue}/r"}
    with capture_logs() as logs:
        shown = await ui.post("/ui/content/prompt", data=form)
    assert "secret &lt;b&gt;" in shown.text
    (line,) = [each for each in logs if each["event"] == "content.shown"]
    assert (line["admin"], line["kind"], line["id"]) == ("ann", "prompt", "r")
    assert "secret" not in repr(logs)
    assert (await ui.post("/ui/content/answer", data=form)).status_code == 404
    assert (await ui.post("/ui/content/other", data=form)).status_code == 400


@pytest.mark.parametrize(
    "prompt",
    [b"[" * 300 + b"]" * 300, b"[" * 200 + b"0," * MAX_INDENTED_BYTES + b"0" + b"]" * 200],
    ids=["deep", "long"],
)
async def test_a_prompt_that_indentation_would_blow_up_shows_as_it_is(
    ui: httpx.AsyncClient, queue: Queue, prompt: bytes
) -> None:
    await queue.submit([a_request("r", body=b'{"prompt":%s}' % prompt)])
    form = {"csrf": token_in((await ui.get("/ui/queues")).text), "subject": f"{queue.keys.queue}/r"}
    shown = await ui.post("/ui/content/prompt", data=form)
    assert shown.status_code == 200
    assert "[" * 200 in shown.text


async def test_dead_letters_are_paged(ui: httpx.AsyncClient, queue: Queue) -> None:
    for number in range(LETTERS_A_PAGE + 1):
        await dead_letter(queue, f"d-{number}")
    first = (await ui.get("/ui/dead")).text
    assert first.count("data-key=") == LETTERS_A_PAGE
    last = (await ui.get(f"/ui/dead?start={LETTERS_A_PAGE}")).text
    assert last.count("data-key=") == 1
    assert (await ui.get("/ui/dead?start=-1")).status_code == 400
    assert (await ui.get("/ui/dead?queue=unknown")).status_code == 404


async def test_open_pages_are_bounded(
    ui: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_pages, "MAX_VIEWERS", 1)
    async with ui.stream("GET", "/ui/queues", headers=EVENTS) as first:
        lines = first.aiter_lines()
        assert await next_page(lines)
        assert (await ui.get("/ui/queues", headers=EVENTS)).status_code == 503
        assert (await ui.get("/ui/queues")).status_code == 200


async def test_viewers_share_one_read_and_nobody_reads_alone() -> None:
    num_reads = 0

    async def read() -> str:
        nonlocal num_reads
        num_reads += 1
        return "content"

    live = LivePages(asyncio.Event())
    found = await asyncio.gather(*(live.fragment("queues", read) for _ in range(20)))
    assert set(found) == {"content"}
    assert num_reads == 1


async def test_gateway_without_jinja_says_how_to_install_the_page(
    redis_url: str, queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    settings = gateway_settings(redis_url, queue, tmp_path)
    async with running_gateway(settings) as gateway, gateway.caller() as client:
        answer = await client.get("/ui/queues")
    assert answer.status_code == 404
    assert "ui]" in problem(answer)["message"]


def test_admin_keys_are_made_listed_and_revoked_by_command() -> None:
    with running_server() as url:

        def run(*arguments: str) -> Result:
            return CliRunner().invoke(command, [*arguments, "--redis-url", url])

        made = orjson.loads(run("create", "ann").stdout)
        assert made["admin_key"].startswith("gma-")
        listed = run("list").stdout
        assert orjson.loads(listed)["name"] == "ann"
        assert made["admin_key"] not in listed
        assert run("revoke", "ann").exit_code == 0
        assert run("list").stdout == ""


async def test_live_events_bring_what_has_changed(
    ui: httpx.AsyncClient, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_pages, "FRESH_S", 0.05)
    async with ui.stream("GET", "/ui/queues", headers=EVENTS) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.aiter_lines()
        assert "0 live workers" in await next_page(lines)
        await queue.submit(some_requests(7))
        await open_worker(queue)
        while "1 live workers" not in await next_page(lines):
            pass


async def next_page(lines: AsyncIterator[str]) -> str:
    async with asyncio.timeout(20):
        async for line in lines:
            if line == "event: page":
                return await anext(lines)
    raise AssertionError("the stream has ended")
