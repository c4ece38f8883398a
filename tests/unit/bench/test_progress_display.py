"""What the bench tells while nothing can be measured yet."""

import asyncio

import pytest

from gristmill.bench import progress_display


async def test_a_start_is_told_at_once_and_again_until_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    monkeypatch.setattr(progress_display, "say", told.append)
    monkeypatch.setattr(progress_display, "LINE_INTERVAL_S", 0)
    async with progress_display.waiting("starting the engine"):
        assert told == ["  starting the engine"]
        while len(told) < 3:
            await asyncio.sleep(0)
    assert told[1].startswith("  starting the engine: ")
    assert told[1].endswith(" s so far")
    num_told = len(told)
    await asyncio.sleep(0)
    assert len(told) == num_told
