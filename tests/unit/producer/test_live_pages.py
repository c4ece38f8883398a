"""How many reads and viewers the gateway's page has, without Redis."""

import asyncio

import pytest
from redis.exceptions import ConnectionError

from gristmill.producer.gateway.ui import live_pages
from gristmill.producer.gateway.ui.live_pages import LivePages


async def is_signed_in() -> bool:
    return True


async def test_viewers_share_the_error_of_a_read() -> None:
    pages, num_reads = LivePages(asyncio.Event()), 0

    async def read() -> str:
        nonlocal num_reads
        num_reads += 1
        raise ConnectionError("away")

    found = await asyncio.gather(
        *(pages.fragment("queues", read) for _ in range(20)), return_exceptions=True
    )
    assert {type(each) for each in found} == {ConnectionError}
    assert num_reads == 1


async def test_viewers_who_come_at_the_same_time_do_not_exceed_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live_pages, "MAX_VIEWERS", 2)
    pages = LivePages(asyncio.Event())

    async def read() -> str:
        return "content"

    streams = [pages.events("queues", read, is_signed_in) for _ in range(3)]
    first = [await anext(stream, "ended") for stream in streams]
    assert first == ["retry: 3000\n\n", "retry: 3000\n\n", "ended"]
    for stream in streams:
        await stream.aclose()  # type: ignore[attr-defined]
    assert pages.num_viewers == 0
