"""`gristmill top` on a true Redis: what its pages show, at 80 columns and wider, and a Redis that goes away."""

import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from batches import chat, create, open_batches
from queues import ERROR, claim, fresh_queue, open_worker, some_requests
from textual.pilot import Pilot

from gristmill.local.redis_server import running_server
from gristmill.producer.top import screen
from gristmill.producer.top.columns import Column, Table, fitted
from gristmill.producer.top.screen import Top, check_terminal
from gristmill.shared.errors import SettingsError
from gristmill.shared.operations import Limits
from gristmill.shared.queue import Queue
from gristmill.shared.request import Request

NARROW, WIDE = (80, 24), (120, 40)


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with running_server() as url:
        yield url


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[Queue]:
    async with fresh_queue(redis_url, Limits(lease_ms=10_000)) as queue:
        yield queue


@pytest.fixture
async def busy(queue: Queue, tmp_path: Path) -> Queue:
    """A queue with everything that a page shows."""
    await queue.submit(some_requests(7, tenant="acme"))
    last = Request.from_body({"prompt": "no"}, id="the-dead-one", priority="high", max_attempts=1)
    await queue.submit([last])
    worker = await open_worker(queue, "host-a-01")
    (dead,) = await claim(queue, worker, 1)
    await queue.nack(worker, dead, 0, ERROR)
    await claim(queue, worker, 2)
    await create(open_batches(queue, tmp_path), [chat("a"), chat("b")])
    return queue


def text_of(app: Top) -> str:
    """Return what the terminal shows, line by line."""
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(part.text for part in strip).rstrip() for strip in strips)


async def shown(pilot: Pilot[None], *words: str) -> str:
    """Wait until the screen shows all the words; return its text."""
    app = pilot.app
    assert isinstance(app, Top)
    while not all(word in text_of(app) for word in words):
        await pilot.pause(0.02)
    return text_of(app)


PAGES = {
    "1": ("[1 queue]", "lane normal", "5 waiting, the oldest", "8 submitted"),
    "2": ("[2 workers]", "host-a-01", "running", "2"),
    "3": ("[3 batches]", "validating", "batch_"),
    "4": ("[4 dead letters]", "the-dead-one", "attempts_exhausted"),
    "5": ("[5 tenants]", "acme", "default"),
}


@pytest.mark.parametrize("size", [NARROW, WIDE])
async def test_each_page_fits_the_terminal(size: tuple[int, int], busy: Queue) -> None:
    app = Top(busy, "redis://there")
    async with app.run_test(size=size) as pilot:
        for key, words in PAGES.items():
            await pilot.press(key)
            text = await shown(pilot, *words, "waiting 5", "in flight 2", "dead 1", "workers 1")
            lines = text.splitlines()
            assert len(lines) == size[1]
            assert max(map(len, lines)) <= size[0]
            assert lines[0].startswith(f"queue {busy.keys.queue} at redis://there")
            assert "q: quit" in lines[-1]
        await pilot.press("q")
    assert app.return_code == 0


async def test_a_wider_terminal_shows_more_columns(busy: Queue) -> None:
    app = Top(busy, "redis://there")
    async with app.run_test(size=NARROW) as pilot:
        await pilot.press("4")
        assert "cause" not in await shown(pilot, "the-dead-one")
        await pilot.resize_terminal(180, 40)
        await shown(pilot, "the-dead-one", "cause", str(ERROR["message"]))


async def test_it_goes_on_after_a_redis_that_was_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screen, "REFRESH_S", 0.05)
    monkeypatch.setattr(screen, "READ_TIMEOUT_S", 0.2)
    with running_server() as url:
        async with fresh_queue(url) as queue:
            await queue.submit(some_requests(3))
            (pid,) = [(await queue.redis.info("server"))["process_id"]]
            async with Top(queue, "redis://there").run_test(size=NARROW) as pilot:
                await shown(pilot, "waiting 3")
                os.kill(pid, signal.SIGSTOP)
                try:
                    text = await shown(pilot, "figures are", "old")
                    assert text.startswith("Redis ")
                    assert "waiting 3" in text
                finally:
                    os.kill(pid, signal.SIGCONT)
                await shown(pilot, f"queue {queue.keys.queue} at")
                await queue.submit(some_requests(2))
                await shown(pilot, "waiting 5")


async def test_the_figures_stay_while_it_is_stopped(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screen, "REFRESH_S", 0.02)
    async with Top(queue, "redis://there").run_test(size=NARROW) as pilot:
        await shown(pilot, "waiting 0")
        await pilot.press("space")
        await shown(pilot, "stopped")
        await queue.submit(some_requests(1))
        await pilot.pause(0.1)
        assert "waiting 0" in await shown(pilot, "stopped")
        await pilot.press("space")
        await shown(pilot, "waiting 1")


def test_a_terminal_that_cannot_is_refused_with_what_to_use() -> None:
    check_terminal({"TERM": "xterm"}, is_terminal=True)
    with pytest.raises(SettingsError, match="TERM is 'dumb'; use gristmill queue stats"):
        check_terminal({"TERM": "dumb"}, is_terminal=True)
    with pytest.raises(SettingsError, match="a pipe or a file; use gristmill queue stats"):
        check_terminal({"TERM": "xterm"}, is_terminal=False)


def test_columns_are_those_that_fit() -> None:
    columns = [Column("name", 8, is_number=False), Column("a"), Column("b")]
    table = Table(columns, [("a long name", "1", "22"), ("x", "333", "4")])
    assert [len(fitted(table, width).columns) for width in (3, 14, 15, 19)] == [1, 1, 2, 3]
    assert fitted(table, 3).rows == [["a long …"], ["x"]]
    texts = Table([Column(""), Column("note", 60, is_number=False)], [("lane", "word " * 9)])
    assert [len(row[-1]) for width in (17, 20, 99) for row in fitted(texts, width).rows] == [
        4,
        12,
        44,
    ]
