"""The terminal of `gristmill top`, with Textual: its keys, its refreshes, and what it says while Redis does not answer."""

import asyncio
import os
import sys
import time
from collections.abc import Mapping
from typing import ClassVar

from redis.exceptions import RedisError
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.widgets import DataTable, Static

from gristmill.producer.overview.figures import duration
from gristmill.producer.top.columns import Column, cut, fitted
from gristmill.producer.top.pages import PAGES, PageData, headline, read_page
from gristmill.shared.connection import connect
from gristmill.shared.errors import GristmillError, SettingsError
from gristmill.shared.format_check import check_format
from gristmill.shared.queue import Queue
from gristmill.shared.queue_stats import Stats
from gristmill.shared.redis_trouble import trouble_in_short
from gristmill.shared.redis_url import redacted
from gristmill.shared.settings import QueueSettings

REFRESH_S = 2.0
"""Seconds between two refreshes."""

READ_TIMEOUT_S = 5.0
"""Seconds after which a refresh without an answer of Redis counts as failed."""

KEYS = "1-5: page | arrows, PgUp, PgDn: scroll | space: stop, go on | q: quit"


def run_top(settings: QueueSettings) -> None:
    """Show a queue until a key ends it.

    Raises:
        SettingsError: This is no terminal, or one that cannot move its cursor.
        redis.exceptions.RedisError: Redis does not answer the first call.
        WrongFormat: Another version wrote the queue.
    """
    check_terminal(os.environ, is_terminal=sys.stdin.isatty() and sys.stdout.isatty())
    asyncio.run(_show(settings))


def check_terminal(environ: Mapping[str, str], *, is_terminal: bool) -> None:
    """Check that a terminal can show a screen.

    Raises:
        SettingsError: It cannot; the message says why, and what to use.
    """
    instead = "use gristmill queue stats"
    if not is_terminal:
        raise SettingsError(
            f"gristmill top needs a terminal, and this is a pipe or a file; {instead}"
        )
    if (term := environ.get("TERM", "")) in ("", "dumb", "unknown"):
        raise SettingsError(
            f"gristmill top needs a terminal that can move its cursor, and TERM is {term!r}; {instead}, or set TERM"
        )


async def _show(settings: QueueSettings) -> None:
    url = settings.redis_url.get_secret_value()
    redis = connect(url, settings.socket_timeout_s)
    queue = Queue(redis, settings.queue, settings.limits)
    try:
        await check_format(redis, queue.keys)  # a wrong URL or login shows before the screen does
        await Top(queue, redacted(url)).run_async(mouse=False)
    finally:
        await redis.aclose()


class Top(App[None]):
    """The screen.

    Args:
        queue: The queue.
        url: URL of its Redis, without secrets.
    """

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #title, #tabs, #note { height: 1; }
    #title, #tabs { text-style: bold; }
    #figures { height: auto; }
    #rows { height: 1fr; scrollbar-size-vertical: 1; scrollbar-size-horizontal: 1; }
    """
    BINDINGS: ClassVar = [
        *(Binding(str(number), f"show('{page}')", page) for number, page in enumerate(PAGES, 1)),
        Binding("space", "hold", "stop and go"),
        Binding("q,ctrl+c", "quit", "quit"),
    ]

    def __init__(self, queue: Queue, url: str) -> None:
        super().__init__(ansi_color=True)
        self._queue, self._url = queue, url
        self._page = next(iter(PAGES))
        self._title, self._figures, self._tabs, self._note = (
            Static(id=name, markup=False) for name in ("title", "figures", "tabs", "note")
        )
        self._rows: DataTable[Text] = DataTable(id="rows", cursor_type="row")
        self._data: PageData | None = None
        self._refresh_task: asyncio.Task[None] | None = None
        self._before: Stats | None = None
        self._finished_per_s: float | None = None
        self._trouble = ""
        self._answered_at = time.monotonic()
        self._is_held = False

    def compose(self) -> ComposeResult:
        """Yield the widgets, from top to bottom."""
        yield from (self._title, self._figures, self._tabs, self._rows, self._note)

    def on_mount(self) -> None:
        """Read the page at once, and then every `REFRESH_S`."""
        self.theme = "ansi-dark"
        self._rows.focus()
        self.set_interval(REFRESH_S, self._tick)
        self._start_refresh()

    def on_resize(self) -> None:
        """Fit the table to the new width."""
        self._draw()

    async def on_unmount(self) -> None:
        """End the refresh that runs."""
        if self._refresh_task:
            self._refresh_task.cancel()

    def action_show(self, page: str) -> None:
        """Show a page."""
        self._page = page
        self._data = None  # its table is that of another page
        self._rows.clear(columns=True)
        if self._refresh_task:
            self._refresh_task.cancel()
        self._start_refresh()

    def action_hold(self) -> None:
        """Stop the refreshes, so that the figures stay, or go on."""
        self._is_held = not self._is_held
        self._draw()

    def _tick(self) -> None:
        if self._refresh_task and self._refresh_task.done():
            self._refresh_task.result()  # a bug in a refresh ends the program, and says so
            if not self._is_held:
                self._start_refresh()
        self._draw_title()

    def _start_refresh(self) -> None:
        self._refresh_task = asyncio.create_task(self._read(self._page))

    async def _read(self, page: str) -> None:
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                data = await read_page(self._queue, page)
        except (RedisError, OSError) as error:  # a timeout is an OSError
            self._trouble = f"Redis {trouble_in_short(error)}"
        except GristmillError as error:
            self._trouble = str(error)
        else:
            self._trouble, self._answered_at = "", time.monotonic()
            self._note_pace(data)
            self._data = data
        self._draw()

    def _note_pace(self, data: PageData) -> None:
        """Note how many requests ended per second since the last refresh."""
        before, now = self._before, data.view.backlog.stats
        self._before = now
        if before and (passed_ms := now.now_ms - before.now_ms) > 0:
            number = sum(now.counters.get(e, 0) - before.counters.get(e, 0) for e in ENDS)
            self._finished_per_s = max(0, number) * 1000 / passed_ms

    def _draw(self) -> None:
        if not self._rows.is_attached:  # the screen is not there yet, or no more
            return
        self._draw_title()
        tabs = (f"[{n} {p}]" if p == self._page else f" {n} {p} " for n, p in enumerate(PAGES, 1))
        self._tabs.update(" ".join(tabs))
        note = KEYS
        if data := self._data:
            lines = [
                cut(each, self.size.width) for each in headline(data.view, self._finished_per_s)
            ]
            self._figures.update("\n".join(lines))
            self._draw_table(data)
            note = " | ".join(filter(None, (data.table.note or _empty(data), KEYS)))
        self._note.update(cut(note, self.size.width))

    def _draw_title(self) -> None:
        away_s = time.monotonic() - self._answered_at
        words = f"queue {self._queue.keys.queue} at {self._url}"
        if self._trouble:
            words = f"{self._trouble}; figures are {duration(away_s)} old; {words}"
        elif self._is_held:
            words = f"stopped {duration(away_s)} ago, space goes on; {words}"
        self._title.update(cut(words, self.size.width))

    def _draw_table(self, data: PageData) -> None:
        rows = self._rows
        row, left, upper = rows.cursor_row, rows.scroll_x, rows.scroll_y
        table = fitted(data.table, self.size.width - 1)  # the bar takes one
        rows.clear(columns=True)
        rows.show_header = any(column.title for column in table.columns)
        for column in table.columns:
            rows.add_column(_cell(column.title, column))
        for cells in table.rows:
            rows.add_row(*(_cell(*pair) for pair in zip(cells, table.columns, strict=True)))
        rows.move_cursor(row=row, scroll=False)
        rows.scroll_to(left, upper, animate=False)


ENDS = ("succeeded", "failed", "cancelled", "expired")
"""Counters of requests that ended."""


def _cell(text: str, column: Column) -> Text:
    return Text(text, justify="right" if column.is_number else "left")


def _empty(data: PageData) -> str:
    return "" if data.table.rows else "nothing to show"
