"""The lines that a child leaves to others, and calls for many children at the same time."""

import asyncio
from array import array
from pathlib import Path

import pytest

from gristmill.producer.batches.batch_state import Checkpoint, ChildPlan
from gristmill.producer.batches.child_batches import for_each
from gristmill.producer.batches.lifecycle import skipped_lines
from gristmill.producer.batches.storage import Storage


@pytest.mark.parametrize("begin", [1, 6])
def test_a_child_reads_the_queues_of_the_lines_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: int
) -> None:
    monkeypatch.setattr(skipped_lines, "SLICE_LINES", 4)
    storage = Storage(str(tmp_path))
    queues = [1, 2, 0, 2, 2, 1, 2, 3, 1, 2]
    storage.write("map", array("H", queues).tobytes())
    skipped = skipped_lines.skipped_lines(storage, Checkpoint(child_lines=ChildPlan("map", 2, 5)))
    own = [number for number in range(begin, 11) if number not in skipped]
    assert own == [number for number in (2, 4, 5, 7, 10) if number >= begin]


async def test_an_error_of_one_child_keeps_no_other_from_its_call() -> None:
    running: set[int] = set()
    most = 0

    async def double(number: int) -> int:
        nonlocal most
        running.add(number)
        most = max(most, len(running))
        await asyncio.sleep(0)
        running.remove(number)
        called.append(number)
        if number == bad:
            raise ValueError(number)
        return 2 * number

    called: list[int] = []
    bad = -1
    assert await for_each(double, range(20), 3) == [2 * number for number in range(20)]
    assert most == 3
    called.clear()
    bad = 1
    with pytest.raises(ValueError, match="1"):
        await for_each(double, range(20), 3)
    assert len(called) == 20
