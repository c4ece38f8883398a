"""The gateway's page in a true Chromium: by keyboard, without errors, in both themes, at 1280 and 400 pixels.

Needs playwright and Debian's chromium. `GRISTMILL_SCREENSHOTS` names a folder for the pictures.
"""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from batches import TENANT, chat, create
from gateways import RunningGateway, gateway_settings, running_gateway
from queues import a_request, claim, fresh_queue, open_worker, some_requests, succeed

from gristmill.local.redis_server import running_server
from gristmill.producer.admins import Admins
from gristmill.shared.brakes import Brake
from gristmill.shared.queue import Queue
from gristmill.shared.queue_brakes import write_brake
from gristmill.shared.worker_load import WorkerLoad

CHROMIUM = shutil.which("chromium")
EVIL = "<img src=x onerror=alert(1)>"
PATHS = ("queues", "workers", "batches", "request?id=r-ended", "dead", "tenants")

pytestmark = [
    pytest.mark.tools,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not CHROMIUM, reason="needs Debian's chromium: apt-get install chromium"),
]
playwright = pytest.importorskip("playwright.async_api", reason="needs playwright from PyPI")


async def fill(gateway: RunningGateway) -> str:
    """Let a queue have something of everything; return the id of a batch."""
    queue = gateway.gateway.queue
    for tenant in ("acme", "research", "nightly-evaluation"):
        await gateway.add_tenant(tenant, tokens_per_day=2_000_000)
    await start_workers(queue)
    for dead_id, code in (("r-dead", "engine_error"), ("r-timeout", "timeout")):
        await kill_request(
            queue, dead_id, {"code": code, "message": f"the engine gave no answer {EVIL}"}
        )
    await queue.submit([a_request("r-ended", tenant="acme", model="m")])
    await succeed(queue, "gpu-a-1", await claim(queue, "gpu-a-1"))
    await queue.submit(some_requests(300, tenant="acme"))
    await claim(queue, "gpu-a-1", 120)
    await claim(queue, "gpu-b-1", 90)
    await queue.submit([a_request("r-wait", tenant="research", delay_s=600, model=EVIL)])
    return await make_batches(gateway)


async def start_workers(queue: Queue) -> None:
    facts: dict[str, str | int] = {
        "models": "org/large-70b-instruct,summaries-lora", "endpoints": "/v1/chat/completions", "device": "NVIDIA H200",
        "num_devices": 4, "max_in_flight": 282, "version": "0.2.0", "vllm_version": "0.24.0", "transport": "in_process",
        "max_model_len": 32768, "pid": 4711,
    }  # fmt: skip
    for number, name in enumerate(("gpu-a-1", "gpu-b-1", "gpu-c-1", "gpu-d-1")):
        await queue.register(name, facts | {"host": f"node-{number}"})
        load = WorkerLoad(
            num_running=210 - 50 * number, num_waiting=3, prompt_tokens_per_s=5200.0, output_tokens_per_s=3180.5 / (number + 1),
            kv_cache_usage=0.83 - number / 10, waits_for="the engine to start" if number == 3 else "",
        )  # fmt: skip
        await queue.beat(name, load.dump())
    brake = Brake("500 InternalServerError", 20, 20, "CUDA error: an illegal memory access", "r-7")
    now_ms = (await queue.stats()).now_ms
    await write_brake(queue.redis, queue.keys, "gpu-c-1", brake, now_ms=now_ms, lease_ms=600_000)


async def kill_request(queue: Queue, dead_id: str, error: dict[str, str]) -> None:
    request = a_request(dead_id, max_attempts=1, tenant="acme", priority="high")
    await queue.submit([request])
    (item,) = await claim(queue, await open_worker(queue, f"w-{dead_id}"), 1)
    await queue.nack(f"w-{dead_id}", item, 0, error)
    await queue.deregister(f"w-{dead_id}")


async def make_batches(gateway: RunningGateway) -> str:
    """Make batches in several states, as stewards would leave them."""
    batches, queue = gateway.gateway.batches, gateway.gateway.queue
    seconds, _ = await queue.redis.time()
    counts = {"total": 120_000, "completed": 84_310, "failed": 127}
    states: list[dict[str, Any]] = [
        {"status": "completed", "in_progress_at": seconds - 7000, "completed_at": seconds - 60,
         "request_counts": {"total": 5000, "completed": 5000}},
        {"status": "failed", "errors": {"data": [
            {"code": "invalid_json", "message": f"line 7 is no JSON {EVIL}", "line": 7}]}},
        {"status": "in_progress", "in_progress_at": seconds - 5400, "model": "org/large-70b-instruct",
         "request_counts": counts, "metadata": {"job": f"nightly {EVIL}"},
         "usage": {"output_tokens": 31_000_000, "input_tokens": 9, "total_tokens": 9}, "device_ms": 18_000_000},
    ]  # fmt: skip
    ids = []
    for fields in states:
        record = await create(batches, [chat("a")])
        ids.append(record.id)
        key = queue.keys.batch_record(record.id)
        changed = orjson.loads(record.model_dump_json()) | fields
        await queue.redis.hset(key, mapping={"record": orjson.dumps(changed), "slices": 3})
    await batches.pause(
        TENANT, (await create(batches, [chat("a")])).id, "ann@desk", "wait for the new model"
    )
    return ids[-1]


@asynccontextmanager
async def browser_page(width: int, theme: Any, problems: list[str]) -> AsyncIterator[Any]:
    """Yield a page of a fresh browser; errors of scripts and of the policy are added to `problems`."""
    async with playwright.async_playwright() as started:
        browser = await started.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        page = await browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
        page.on(
            "console", lambda each: problems.append(each.text) if each.type == "error" else None
        )
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda _: problems.append("a script of a stranger ran"))
        try:
            yield page
        finally:
            await browser.close()


async def sign_in(page: Any, url: str, key: str) -> None:
    await page.goto(f"{url}/ui", wait_until="domcontentloaded")
    await page.fill("#key", key)
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/ui/queues")


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = Path(os.environ.get("GRISTMILL_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@asynccontextmanager
async def filled_gateway(folder: Path) -> AsyncIterator[tuple[RunningGateway, str, str]]:
    """Yield a gateway with work, an admin key and the id of a batch."""
    with running_server() as url:
        async with fresh_queue(url) as queue:
            settings = gateway_settings(url, queue, folder, lease_s=600, gateway_queues=("embed",))
            async with running_gateway(settings) as gateway:
                batch_id = await fill(gateway)
                yield gateway, await Admins(queue.redis).create("ann"), batch_id


async def test_pages_have_no_errors_and_fit_in_both_widths_and_themes(
    tmp_path: Path, pictures: Path
) -> None:
    problems: list[str] = []
    async with filled_gateway(tmp_path / "files") as (gateway, key, batch_id):
        for width in (1280, 400):
            for theme in ("light", "dark"):
                async with browser_page(width, theme, problems) as page:
                    await page.goto(f"{gateway.url}/ui/login", wait_until="domcontentloaded")
                    await page.screenshot(path=pictures / f"login-{width}-{theme}.png")
                    await sign_in(page, gateway.url, key)
                    for path in (*PATHS, f"batch?id={batch_id}"):
                        await page.goto(f"{gateway.url}/ui/{path}", wait_until="domcontentloaded")
                        await page.wait_for_selector(".connection.live")
                        name = f"{path.partition('?')[0]}-{width}-{theme}.png"
                        await page.screenshot(path=pictures / name, full_page=True)
                        assert await page.evaluate("document.documentElement.scrollWidth") <= width
                        assert await nameless(page) == []
    assert problems == []


async def nameless(page: Any) -> list[str]:
    """Return elements that a screen reader could not name: a small part of what axe checks."""
    found: list[str] = await page.evaluate(
        """() => [...document.querySelectorAll('a, button, input:not([type=hidden]), table, nav, img')].filter((each) => {
          const isNamed = each.getAttribute('aria-label') || each.labels?.length || each.textContent.trim()
            || each.getAttribute('alt') !== null || each.querySelector('caption');
          return !isNamed;
        }).map((each) => each.outerHTML.slice(0, 100))"""
    )
    return found


async def test_walk_by_keyboard_keeps_focus_while_the_page_lives(tmp_path: Path) -> None:
    problems: list[str] = []
    async with filled_gateway(tmp_path / "files") as (gateway, key, _):
        queue = gateway.gateway.queue
        async with browser_page(1280, "light", problems) as page:
            await sign_in(page, gateway.url, key)
            await page.keyboard.press("Tab")
            assert await focused(page) == "Skip to the content"
            await page.focus("nav a[href='/ui/dead']")
            await page.keyboard.press("Enter")
            await page.wait_for_url("**/ui/dead")
            await page.focus("button[aria-label='Requeue r-dead']")
            await page.evaluate("[...document.querySelectorAll('details')].at(-1).open = true")
            await kill_request(queue, "r-later", {"code": "x", "message": "later"})
            await page.wait_for_selector("button[aria-label='Requeue r-later']")
            assert await focused(page) == "Requeue"
            await queue.dead_letters.purge(["r-timeout"])  # it stands before the focused one
            await page.wait_for_selector("button[aria-label='Requeue r-timeout']", state="detached")
            label = await page.evaluate("document.activeElement.getAttribute('aria-label')")
            assert label == "Requeue r-dead"
            assert await page.evaluate("document.querySelectorAll('details[open]').length") == 1
            await page.wait_for_selector("#status:has-text('2 dead')", state="attached")
            await page.keyboard.press("Enter")
            await page.wait_for_url("**/ui/request?id=*")
            assert "Requeued from" in await page.inner_text("main")
            await page.focus("text=Show the prompt")
            await page.keyboard.press("Enter")
            await page.wait_for_url("**/ui/content/prompt")
            assert "hi" in await page.inner_text("pre")
            await page.focus("#theme")
            for theme in ("light", "dark"):
                await page.keyboard.press("Enter")
                assert await page.evaluate("document.documentElement.dataset.theme") == theme
            await page.focus("text=Sign out")
            await page.keyboard.press("Enter")
            await page.wait_for_url("**/ui/login")
    assert problems == []


async def focused(page: Any) -> str:
    text: str = await page.evaluate("document.activeElement.textContent")
    return text
